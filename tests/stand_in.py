"""A Python that hands its program to the tests' server, which forks a process that has imported everything already.

`stand_in.py -c CODE WORD…` gives that process the folder, environment, input and outputs of this one, waits, and ends
as it ended. A program that starts with `istar` takes six seconds of imports, and in this way none.
"""
import json
import os
import socket
import sys

code, *words = sys.argv[1 + sys.argv.index("-c"):]
order = dict(code=code, words=words, folder=os.getcwd(), environment=dict(os.environ))
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["ISTAR_TESTS_SERVER"])
    socket.send_fds(server, [b"\n"], [0, 1, 2])
    server.sendall(json.dumps(order).encode() + b"\n")
    end = int(server.makefile().readline())
if end < 0: os.kill(os.getpid(), -end)
sys.exit(end)

"What the server of forked processes does last: the rows that many of them read, and nothing left for their garbage collectors."
import gc

from istar_nb.tasks import load_task

load_task("stdlib-docs")
gc.collect()
gc.freeze()

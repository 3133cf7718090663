"What the server of forked processes does last: reads the rows that many need, and leaves no garbage to collect."
import gc

from istar_nb.text.tasks import load_task

load_task("stdlib-docs")
gc.collect()
gc.freeze()

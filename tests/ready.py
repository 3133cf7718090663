"What the server of forked processes does last: reads the rows that many need, and leaves no garbage to collect."
import gc
from contextlib import suppress

from istar_nb.text.tasks import load_task

load_task("stdlib-docs")
with suppress(ImportError):    # what transformers makes up once in every process that reads a model
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    get_checkpoint_conversion_mapping("bert")
gc.collect()
gc.freeze()

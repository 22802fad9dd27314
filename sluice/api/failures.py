"""What went wrong, in a sentence, of errors that are not our own."""

from obstore.exceptions import BaseError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice.runtime.session import spark_message
from sluice.storage import bucket

# What a command may raise beside a SluiceError without a fault of ours: Spark, a disk, an object store.
Foreign = (PySparkException, Py4JError, BaseError, OSError)


def message_of(error: Exception) -> str:
    """What to say of one of the `Foreign` errors, without the stack of its program."""
    if isinstance(error, PySparkException | Py4JError):
        return spark_message(error)
    if bucket.is_of_store(error):
        return f"The object store failed: {' '.join(str(error).split())[:500]} Try again, or: sluice doctor"
    subject = "A connection" if isinstance(error, ConnectionError) else "A file"
    return f"{getattr(error, 'filename', None) or subject}: {getattr(error, 'strerror', None) or error}."

"""The bucket of a lake: checked, created by a run, and probed for conditional writes."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from sluice.errors import SluiceError, UsageError
from sluice.storage.s3 import S3

if TYPE_CHECKING:
    from minio import Minio
    from obstore.store import S3Store

# The errors of an object store, as obstore raises them.
StoreError = (BaseError, OSError)
answers_within_seconds = 10
conditions = ("If-None-Match", "If-Match")
# Error codes of servers, and what to do about them.
advice = {
    "InvalidAccessKeyId": "it does not know the key. Check AWS_ACCESS_KEY_ID",
    # What versitygw calls it.
    "XAdminUserNotFound": "it does not know the key. Check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret is not the key's. Check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired. Get another (AWS_SESSION_TOKEN)",
    "AccessDenied": "the key has no permission. Ask for one to list, read, write and delete objects there",
    "AllAccessDisabled": "all access to it is disabled. Choose another bucket (SLUICE_LAKE)",
    "RequestTimeTooSkewed": "the clock of this machine is wrong. Set it",
    "AuthorizationHeaderMalformed": "it is in another region. Check AWS_REGION",
}


def require(where: S3, *, make: bool = False) -> bool:
    """Makes sure that the bucket is there and can be read; True when it was made. A SluiceError says what is wrong."""
    from minio.error import MinioException, S3Error
    from urllib3.exceptions import HTTPError

    try:
        client = client_of(where)
        try:
            next(iter(client.list_objects(where.bucket, prefix=f"{where.prefix}/")), None)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            if not make:
                raise SluiceError(
                    f"There is no bucket {where.bucket} at {where.address}. The first run makes it: sluice run"
                ) from error
            client.make_bucket(where.bucket, location=where.region)
            return True
    except S3Error as error:
        known = advice.get(error.code or "", f"{error.code}: {error.message}".rstrip("."))
        raise SluiceError(f"The bucket {where.bucket} at {where.address} cannot be used: {known}.") from error
    except (MinioException, HTTPError, OSError, ValueError) as error:
        raise SluiceError(
            f"No object store answers at {where.address}: {reason(error)}. Start it, or check AWS_ENDPOINT_URL."
        ) from error
    return False


def client_of(where: S3) -> "Minio":
    """MinIO's client, which speaks to any server; it gives up soon."""
    try:
        import urllib3
        from minio import Minio
        from minio.credentials.providers import EnvAWSProvider
    except ImportError as error:
        raise UsageError("Tables on S3 need an extra package: pip install 'sluice-lakehouse[s3]'") from error
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(answers_within_seconds),
        retries=urllib3.Retry(total=2, backoff_factor=0.2),
        ca_certs=str(where.ca_bundle) if where.ca_bundle else None,
    )
    address = where.endpoint.partition("://")[2].rstrip("/") or "s3.amazonaws.com"
    return Minio(
        address,
        secure=not where.is_plain_http,
        region=where.region,
        credentials=EnvAWSProvider(),
        http_client=pool,
    )


def reason(error: BaseException) -> str:
    """The innermost cause, in a line."""
    found = getattr(error, "reason", None)
    return reason(found) if isinstance(found, BaseException) else str(error).splitlines()[0]


def broken_conditions(store: "S3Store", *, rounds: int, writers: int) -> list[str]:
    """Lets concurrent writers create, and then replace, one object; returns what went wrong.

    In each round exactly one may win. A server that ignores If-None-Match or If-Match reports success to all.
    """
    wrong = []
    with ThreadPoolExecutor(writers) as pool:
        for _ in range(rounds):
            name = f"_probe/{uuid.uuid4().hex}"
            try:
                for condition in conditions:
                    won = sum(pool.map(attempt(store, name, condition), range(writers)))
                    # A reply may be lost: a winner that retries is refused.
                    if won > 1 or not content(store, name).startswith(condition.encode()):
                        wrong.append(f"{won} of {writers} writers succeeded with the same {condition}")
            finally:
                forget(store, name)
    return wrong


def attempt(store: "S3Store", name: str, condition: str) -> Callable[[int], bool]:
    """A writer: it says whether it won. What it puts begins with the condition."""
    mode: obstore.PutMode = "create" if condition == "If-None-Match" else {"e_tag": obstore.head(store, name)["e_tag"]}

    def put(writer: int) -> bool:
        try:
            obstore.put(store, name, f"{condition} {writer}".encode(), mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    return put


def content(store: "S3Store", name: str) -> bytes:
    return bytes(obstore.get(store, name).bytes())


def is_of_store(error: Exception) -> bool:
    """True of an error that an object store is behind, whichever library raised it."""
    return isinstance(error, BaseError) or "S3 error" in str(error)


def forget(store: "S3Store", name: str) -> None:
    try:
        obstore.delete(store, name)
    except StoreError:
        # What was found is not changed by an object that stays.
        return

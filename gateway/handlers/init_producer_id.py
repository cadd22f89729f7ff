"""InitProducerId.

v0-2: a new producer id.
v3-5: a producer keeps its id with the next epoch (KIP-360).
v6: two-phase commit (KIP-939).

Transactions are not supported, so every call without a transactional id returns a new id.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer.transaction import InitProducerIdResponse

from gateway import logs
from gateway.coroutines import shield_with_timeout
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.tenant_scope import printable_id
from storage.log import StorageError

_log = logs.get_logger(__name__)


@serves(ApiKey.INIT_PRODUCER_ID, 0, 6)
async def init_producer_id(request: Any, caller: Caller) -> Any:
    """Return a producer id for idempotence.

    A transactional id is rejected with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which no client
    retries; librdkafka, aiokafka and Sarama retry INVALID_REQUEST.
    """
    if request.transactional_id is not None:
        _log.warning(
            "transactional producer refused",
            peer=caller.peer,
            listener=caller.listener,
            client_id=caller.client_id,
            transactional_id=printable_id(request.transactional_id),
            reason="transactions are not supported; remove transactional.id",
        )
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        if not caller.may_on_any(AclOperation.WRITE, AclResource.TOPIC):
            caller.require_cluster(AclOperation.IDEMPOTENT_WRITE)
        longest = caller.broker.settings.offsets_commit_timeout_ms / 1000
        producer_id = await shield_with_timeout(
            caller.broker.clock, longest, caller.broker.producer_ids.next_id()
        )
    except TimeoutError:
        return InitProducerIdResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, producer_id=-1, producer_epoch=-1
        )
    except KafkaError as refusal:
        return InitProducerIdResponse(error_code=refusal.code, producer_id=-1, producer_epoch=-1)
    except StorageError as failure:
        return InitProducerIdResponse(
            error_code=storage_error(failure).code, producer_id=-1, producer_epoch=-1
        )
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)

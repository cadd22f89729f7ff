"""A fake admin client for `kopgate acls` and `kopgate users`, with replies as of Kafka 3.9.2."""

from __future__ import annotations

from kafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidRequestError,
    ResourceNotFoundError,
    SecurityDisabledError,
)
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4

_Described = DescribeAclsResponse.DescribeAclsResource
_Filtered = DeleteAclsResponse.DeleteAclsFilterResult
_Credentials = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


class FakeCredentialAdmin:
    """ACLs as tuples (type, name, pattern, principal, host, operation, permission), and SCRAM
    credentials by user and mechanism.
    """

    def __init__(self):
        self.acls = set()
        self.scram = {}
        self.has_authorizer = True
        self.is_allowed = True

    def send(self, request, node_id=None):
        answers = {
            CreateAclsRequest: self._create,
            DescribeAclsRequest: self._describe,
            DeleteAclsRequest: self._delete,
            DescribeUserScramCredentialsRequest: self._describe_users,
        }
        return answers[type(request)](request)

    def send_to_controller(self, request, error_codes):
        assert isinstance(request, AlterUserScramCredentialsRequest)
        rows = []
        for one in request.upsertions:
            self.scram[one.name, one.mechanism] = (
                one.iterations,
                bytes(one.salt),
                bytes(one.salted_password),
            )
            rows.append(_Altered(user=one.name, error_code=0, error_message=None))
        for one in request.deletions:
            del self.scram[one.name, one.mechanism]
            rows.append(_Altered(user=one.name, error_code=0, error_message=None))
        response = AlterUserScramCredentialsResponse(throttle_time_ms=0, results=rows)
        assert list(error_codes(response)) == [0] * len(rows)
        return response

    def _refusal(self):
        if not self.has_authorizer:
            return SecurityDisabledError.errno, "No Authorizer is configured."
        if not self.is_allowed:
            return ClusterAuthorizationFailedError.errno, None
        return 0, None

    def _create(self, request):
        rows = []
        for one in request.creations:
            code, message = self._refusal()
            if not code and one.host == "bad host":
                code, message = InvalidRequestError.errno, "Invalid host"
            if not code:
                self.acls.add(
                    (
                        one.resource_type,
                        one.resource_name,
                        one.resource_pattern_type,
                        one.principal,
                        one.host,
                        one.operation,
                        one.permission_type,
                    )
                )
            rows.append(
                CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
            )
        return CreateAclsResponse(throttle_time_ms=0, results=rows)

    def _describe(self, request):
        code, message = self._refusal()
        rows = [] if code else [acl for acl in self.acls if _matches(request, acl)]
        return DescribeAclsResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message=message,
            resources=[
                _Described(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    acls=[
                        _Described.AclDescription(
                            principal=principal,
                            host=host,
                            operation=operation,
                            permission_type=permission,
                        )
                    ],
                )
                for kind, name, pattern, principal, host, operation, permission in rows
            ],
        )

    def _delete(self, request):
        results = []
        for one in request.filters:
            found = [acl for acl in self.acls if _matches(one, acl)]
            self.acls -= set(found)
            results.append(
                _Filtered(
                    error_code=0,
                    error_message=None,
                    matching_acls=[
                        _Filtered.DeleteAclsMatchingAcl(
                            error_code=0,
                            error_message=None,
                            resource_type=kind,
                            resource_name=name,
                            pattern_type=pattern,
                            principal=principal,
                            host=host,
                            operation=operation,
                            permission_type=permission,
                        )
                        for kind, name, pattern, principal, host, operation, permission in found
                    ],
                )
            )
        return DeleteAclsResponse(throttle_time_ms=0, filter_results=results)

    def _describe_users(self, request):
        wanted = [user.name for user in request.users or ()] or sorted(
            {name for name, _ in self.scram}
        )
        rows = []
        for name in wanted:
            infos = [
                _Credentials.CredentialInfo(mechanism=mechanism, iterations=stored[0])
                for (user, mechanism), stored in self.scram.items()
                if user == name
            ]
            rows.append(
                _Credentials(
                    user=name,
                    error_code=0 if infos else ResourceNotFoundError.errno,
                    error_message=None,
                    credential_infos=infos,
                )
            )
        return DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=0, error_message=None, results=rows
        )


def _matches(wanted, acl):
    kind, name, pattern, principal, host, operation, permission = acl
    return (
        wanted.resource_type_filter in (ANY, kind)
        and wanted.principal_filter in (None, principal)
        and wanted.host_filter in (None, host)
        and wanted.operation in (ANY, operation)
        and wanted.permission_type in (ANY, permission)
        and _matches_name(wanted.resource_name_filter, wanted.pattern_type_filter, name, pattern)
    )


def _matches_name(wanted, wanted_pattern, name, pattern):
    if wanted_pattern == MATCH:
        is_prefix_of = pattern == PREFIXED and wanted.startswith(name)
        return is_prefix_of or (pattern == LITERAL and name in (wanted, "*"))
    return wanted in (None, name) and wanted_pattern in (ANY, pattern)

"""Makes the bearer tokens with which Amazon MSK authenticates IAM users (``sasl_mechanism="AWS_MSK_IAM"``).

Owns the choice of the region and of the credentials. Does not own the signature: AWS's own package,
``aws-msk-iam-sasl-signer-python``, makes it. Its tokens are sent to the broker with OAUTHBEARER, as by AWS's
libraries for all languages except Java. Blocks: called on background threads only.
"""

import os
import re
from collections.abc import Callable
from functools import partial

from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError

#: ``b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com``, ``boot-xyz.c1.kafka-serverless.us-east-1...``
_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.")


class AwsTokens:
    """A token provider with the same interface as those that users write.

    Raises KafkaConfigurationError if the package is missing, or no region can be found.
    """

    def __init__(self, config: ProducerConfig) -> None:
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer
        except ImportError as error:
            raise KafkaConfigurationError(
                "sasl_mechanism='AWS_MSK_IAM' needs AWS's signer: pip install 'cyproducer[aws]'"
            ) from error
        module = config.login_module
        profile, role = module.get("awsProfileName"), module.get("awsRoleArn")
        if profile is not None and role is not None:
            raise KafkaConfigurationError(
                "sasl_jaas_config='***': awsProfileName and awsRoleArn are two places for credentials: give "
                "one of them; a profile may have a role"
            )
        region = _region_of(config, profile)
        self._sign: Callable[[], tuple[str, int]]
        if role is not None:
            # The session's name is a part of the principal, which must not change in a renewed session.
            session = {"sts_session_name": name} if (name := module.get("awsRoleSessionName")) else {}
            self._sign = partial(signer.generate_auth_token_from_role_arn, region, role, **session)
        elif profile is not None:
            self._sign = partial(signer.generate_auth_token_from_profile, region, profile)
        else:
            self._sign = partial(signer.generate_auth_token, region)

    def token(self) -> tuple[str, int]:
        """Returns a token and its expiry, in milliseconds since 1970."""
        return self._sign()


def _region_of(config: ProducerConfig, profile: str | None) -> str:
    for host, _ in config.bootstrap_addresses:
        if found := _REGION.search(host):
            return found[1]
    import botocore.session

    given: str | None = os.environ.get("AWS_REGION")
    if not given:
        given = botocore.session.Session(profile=profile).get_config_variable("region")
    if not given:
        raise KafkaConfigurationError(
            f"sasl_mechanism='AWS_MSK_IAM': bootstrap_servers={list(config.bootstrap_servers)} do not name "
            "an AWS region: set the environment variable AWS_REGION, or region in the AWS profile"
        )
    return given

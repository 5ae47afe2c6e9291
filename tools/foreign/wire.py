"""Encodings, constants and rules of the wire, read out of the protocol's document."""
import base64
import datetime
import hashlib
import json
import re

API = "/api/v1/agent-runtime/"
BODY_LIMIT = 2_621_440
RETRY_STAGES = {"runtime_execution", "runtime_infrastructure", "runtime_preflight"}
RETRY_WORDS = [
    "[winerror 2]", "file not found", "no such file or directory", "connection reset", "connection aborted",
    "temporarily unavailable", "timed out", "timeout", "too many requests", "rate limit", "bad gateway",
    "service unavailable", "gateway timeout", "expecting value: line 1 column", "returned malformed json",
    "returned malformed or incomplete json", "could not read as json", "returned an empty response",
    "returned no changed files", "returned no valid changed files", "unknown funded path id", "instead of json"]
PHASES = set("""PREPARING_REPOSITORY PREPARING_ENVIRONMENT BASELINE_VALIDATION GENERATING_IMPLEMENTATION
 POST_CHANGE_VALIDATION REPAIRING_IMPLEMENTATION CREATING_COMMIT PUSHING_BRANCH CREATING_PULL_REQUEST
 SUBMITTING_RESULT SUBMITTED FAILED""".split())
STATUSES = {"waiting", "running", "submitted", "failed"}
REVIEW_PHASES = set("""PREPARING_REVIEW CHECKING_OUT_COMMIT PREPARING_ENVIRONMENT RUNNING_VALIDATION EVALUATING_REQUIREMENTS
 SUBMITTING_VERDICT COMPLETED FAILED""".split())
VERDICTS = {"APPROVED", "REJECTED", "INCONCLUSIVE"}


def canonical(value):
    """The control plane's canonical text; raises on what it can't store."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
        raise ValueError("U+0000")
    return text.encode("utf-8")  # a lone surrogate raises here


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def unb64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def iso(offset=0):
    moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset)
    return moment.isoformat()

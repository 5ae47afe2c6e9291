"""A verification: its task, and what the control plane checks in a report."""
import datetime
import secrets
import threading
import time
import uuid

from evidence import check_fields, walk
from wire import API, VERDICTS, canonical, iso

SEVERITIES = {"INFO", "LOW", "MEDIUM", "HIGH", "CRITICAL"}
BOTH_PASS = {"The sums are right.": lambda shown: "a + b" in shown, "Nothing else changes.": lambda shown: True}


class Review:
    """One submission to verify: a commit in a pull request, and what its worker said of it."""
    kind, prefix, names = "verification_task", "verification", "verification_id"

    def __init__(self, number, world, **options):
        self.number, self.world, self.options = number, world, options
        self.assignment, self.worker_assignment = str(uuid.uuid4()), str(uuid.uuid4())
        self.full_name, self.branch = f"example/sample-{number}", f"veyra/job-{number}-mend-1"
        self.commit, self.changed_files = "", []
        self.criteria = options.get("criteria", BOTH_PASS)
        self.says, self.model_findings = options.get("says"), options.get("findings", [])
        self.asked, self.overloads, self.hold, self.held = 0, 0, None, threading.Event()
        self.tokens, self.leases, self.repository_tokens = {}, {}, []
        self.credential = options.get("credential", {})
        self.submissions, self.accepted, self.credentials, self.delivered = [], None, 0, []
        self.faults, self.credential_faults = list(options.get("faults", [])), list(options.get("credential_faults", []))
        self.done, self.beats, self.phases = threading.Event(), 0, []
        self.lease()

    def lease(self):
        """A first lease, or a new one under the same id, as after one that ran out."""
        self.lease_id = str(uuid.uuid4())
        seconds = self.options.get("lease_seconds", 1800)
        self.leases[self.lease_id] = (time.time() + seconds, self.branch, iso(seconds))

    def secrets(self):
        return [*self.tokens, *self.repository_tokens]

    def task(self):
        """The task as a beat carries it, with a fresh lease token each time."""
        token = f"lease.{secrets.token_urlsafe(24)}"
        self.tokens[token] = self.lease_id
        owner, name = self.full_name.split("/")
        origin, forge = self.world.plane.origin, self.world.forge.origin
        task = {
            "id": self.assignment, "type": "independent_verification", "worker_assignment_id": self.worker_assignment,
            "job_id": self.number, "lease_id": self.lease_id, "lease_token": token, "lease_expires_at": self.leases[self.lease_id][2],
            "repository": {"owner": owner, "name": name, "full_name": self.full_name,
                           "clone_url": f"{forge}/{self.full_name}.git", "target_branch": "main"},
            "submission": {"commit_sha": self.commit, "pull_request_number": 1,
                           "pull_request_url": f"{forge}/{self.full_name}/pull/1", "branch": self.branch,
                           "changed_files": self.changed_files, "worker_evidence_hash": "0x" + "5a" * 32,
                           "worker_test_command": "python -m unittest discover -s tests -q", "worker_test_passed": True},
            "work": {"title": f"Mend the sums (case {self.number})", "description": "The sums are wrong.\n",
                     "acceptance_criteria": [{"statement": text, "verificationMethod": "review"} for text in self.criteria],
                     "technical_requirements": ["Keep the interface."]},
            "policy": {"allowed_paths": [], "forbidden_paths": ["deploy/**"], "required_commands": [],
                       "maximum_review_minutes": 20, **self.options.get("policy", {})},
            "credential_url": origin + API + "verification/credential/", "submit_url": origin + API + "verification/result/"}
        if alter := self.options.get("alter"):
            alter(task)
        return task


FIELDS = [("verdict", str, 12), ("summary", str, 3000), ("commit_sha", str, 40), ("pull_request_number", int, 0),
          ("changed_files", list, 0), ("independent_test_command", str, 500), ("independent_test_return_code", int, 0),
          ("independent_test_output", str, 12_000), ("environment_setup_command", str, 240), ("environment_setup_output", str, 4000),
          ("acceptance_criteria", list, 0), ("security_findings", list, 30), ("provider", str, 80), ("model", str, 160),
          ("runtime_version", str, 64), ("started_at", str, 64), ("completed_at", str, 64)]


def check_rows(rows, table, what):
    """Each row is an object of exactly these fields."""
    faults = []
    for row in rows:
        if not isinstance(row, dict) or set(row) != {name for name, _, _ in table}:
            faults.append(f"{what}: {row!r}")
            continue
        faults += [f"{what}: {fault}" for fault in check_fields(row, table)]
    return faults


def check_report(report, job):
    """The faults of a report, as the protocol's section on verification counts them."""
    faults = check_rows([report], FIELDS, "report")
    if faults:
        return faults
    faults += [f"float at {path}" for path, value in walk(report) if isinstance(value, float)]
    criteria, findings = report["acceptance_criteria"], report["security_findings"]
    faults += check_rows(criteria, [("passed", bool, 0), ("evidence", str, 1200)], "criterion")
    faults += check_rows(findings, [("severity", str, 8), ("title", str, 240), ("detail", str, 1200)], "finding")
    for name, got, wanted in (("commit", report["commit_sha"], job.commit), ("pull request", report["pull_request_number"], 1),
                              ("changed files", report["changed_files"], job.changed_files),
                              ("number of criteria", len(criteria), len(job.criteria)),
                              ("model", (report["provider"], report["model"]), ("foreign", job.world.model.name))):
        if got != wanted:
            faults.append(f"{name}: {got!r}, not {wanted!r}")
    if report["verdict"] not in VERDICTS or not report["summary"].strip() or not report["runtime_version"]:
        faults.append(f"verdict {report['verdict']!r}, summary {report['summary']!r}")
    if faults:
        return faults
    if wrong := [row for row in findings if row["severity"] not in SEVERITIES]:
        faults.append(f"severities of {wrong}")
    grave = [row for row in findings if row["severity"] in ("HIGH", "CRITICAL")]
    if report["verdict"] == "APPROVED" and (report["independent_test_return_code"] != 0 or grave
                                            or not all(row["passed"] for row in criteria)):
        faults.append("approved though the code, a criterion or a finding forbids it")
    started, completed = (datetime.datetime.fromisoformat(report[name]) for name in ("started_at", "completed_at"))
    if None in (started.tzinfo, completed.tzinfo) or started > completed:
        faults.append(f"times {started}, {completed}")
    text = canonical(report).decode()
    if [secret for secret in job.world.secrets() if secret in text]:
        faults.append("a secret in the report")
    return faults

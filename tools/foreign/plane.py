"""The control plane: pairing's other side, heartbeats, credentials and results."""
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
import uuid

from evidence import check_common, check_failure, check_success
from review import check_report
from web import Dropped, Refusal, Server, html
from wire import (API, BODY_LIMIT, PHASES, RETRY_STAGES, RETRY_WORDS, REVIEW_PHASES, STATUSES, VERDICTS, canonical, iso,
                  sha256, unb64)


class Job:
    """One funded job with what the plane knows of it, lease by lease."""
    kind, prefix, names = "job_task", "job", "assignment_id"

    def __init__(self, number, world, files, script, **options):
        self.number, self.world, self.files, self.script = number, world, files, script
        self.options = options
        self.assignment, self.attempt = str(uuid.uuid4()), 0
        self.full_name = f"example/sample-{number}"
        self.cursor, self.hold, self.held = 0, None, threading.Event()
        self.tokens, self.leases = {}, {}
        self.repository_token = "ghs_" + secrets.token_hex(18)
        self.submissions, self.accepted, self.failures, self.credentials, self.delivered = [], None, [], 0, []
        self.faults = list(options.get("faults", []))
        self.credential_faults = list(options.get("credential_faults", []))
        self.done, self.beats, self.statuses, self.phases = threading.Event(), 0, set(), []
        self.lease()

    def lease(self):
        self.attempt += 1
        self.lease_id = str(uuid.uuid4())
        self.minutes = self.options.get("minutes", 10)
        seconds = self.options.get("lease_seconds", max(600, self.minutes * 60 + 120))
        self.leases[self.lease_id] = (time.time() + seconds, f"veyra/job-{self.number}-mend-{self.attempt}", iso(seconds))

    def secrets(self):
        return [*self.tokens, self.repository_token]

    def task(self):
        """The task as a beat carries it, with a fresh lease token each time."""
        _, branch, expires = self.leases[self.lease_id]
        token = f"lease.{secrets.token_urlsafe(24)}"
        self.tokens[token] = self.lease_id
        owner, name = self.full_name.split("/")
        origin, title = self.world.plane.origin, f"Mend the sums (case {self.number})"
        task = {
            "id": self.assignment, "type": "veyra_paid_job", "job_id": self.number, "queue_item_id": str(uuid.uuid4()),
            "assignment_attempt": self.attempt, "lease_id": self.lease_id, "lease_token": token, "lease_expires_at": expires,
            "credential_url": origin + API + "job/credential/", "submit_url": origin + API + "job/result/",
            "repository": {"owner": owner, "name": name, "full_name": self.full_name, "private": True,
                           "target_branch": "main", "clone_url": f"{self.world.forge.origin}/{self.full_name}.git"},
            "work": {"title": title, "description": "The sums are wrong. <b>Mend</b> them.\n", "issue_number": 3,
                     "issue_url": f"{self.world.forge.origin}/{self.full_name}/issues/3",
                     "technical_requirements": ["Keep the interface.", {"text": "Python 3"}],
                     "acceptance_criteria": [{"statement": "The tests pass.", "verificationMethod": "tests"}, "Nothing else changes."]},
            "policy": {"allowed_paths": [], "forbidden_paths": ["deploy/**"], "allow_new_dependencies": False,
                       "allow_database_migrations": False, "maximum_execution_minutes": self.minutes,
                       "required_commands": [], "maximum_repair_attempts": 1, **self.options.get("policy", {})},
            "delivery": {"branch": branch, "pull_request_title": f"Job {self.number}: {title}",
                         "pull_request_body_prefix": "Closes nothing.\n\n<!-- veyra -->\n"}}
        if change := self.options.get("change"):
            change(task)
        return task


class Plane:
    """The control plane: what the daemon asks, answered as strictly as the real one."""

    def __init__(self, world):
        self.world, self.lock = world, threading.RLock()
        self.agent, self.credential = str(uuid.uuid4()), ""
        self.runtime_id, self.public_key = "", b""
        self.status = "ACTIVE" if world.role == "VERIFIER" else "PROVISIONING"  # only workers are qualified
        self.jobs, self.job, self.qualification, self.qualified = {}, None, None, threading.Event()
        self.beats, self.beat, self.last_beat = 0, {}, 0.0
        self.revoked, self.strays = False, {}
        self.origin = Server(world, self.serve).origin

    def serve(self, exchange):
        route, method = exchange.route, exchange.command
        if not route.endswith("/"):
            self.world.violation(f"{route} without its slash")
            raise Refusal(301, "", {"Location": route + "/"})
        if len(exchange.body) > BODY_LIMIT:
            self.world.violation("a body over 2.5 MiB")
            raise html(400, "Bad Request")
        routes = {"heartbeat/": ("POST", self.heartbeat), "configuration/": ("GET", self.configuration),
                  "qualification/submit/": ("POST", self.submit_qualification),
                  "job/credential/": ("POST", self.repository_credential), "job/result/": ("POST", self.result),
                  "verification/credential/": ("POST", self.reading_credential), "verification/result/": ("POST", self.verdict)}
        known = routes.get(route.removeprefix(API)) if route.startswith(API) else None
        if known is None:
            self.world.violation(f"{method} {route}: unknown path")
            raise html(404, "Not Found")
        if known[0] != method:
            raise Refusal(405, {"detail": f'Method "{method}" not allowed.'})
        if exchange.headers.get("Origin") or exchange.headers.get("Cookie"):
            self.world.violation("Origin or Cookie header")
            raise Refusal(403, {"detail": "CSRF Failed"})
        body = {}
        if method == "POST":
            if exchange.headers.get("Content-Type", "").split(";")[0] != "application/json":
                raise Refusal(415, {"detail": "Unsupported media type"})
            try:
                body = json.loads(exchange.body)
            except ValueError as error:
                self.world.violation(f"{route}: body is no JSON")
                raise Refusal(400, {"detail": "JSON parse error"}) from error
        self.authenticate(exchange, body)
        with self.lock:
            return known[1](exchange, body)

    def authenticate(self, exchange, body):
        named = [exchange.query.get("agent_id"), body.get("agent_id"), exchange.headers.get("X-Veyra-Agent-ID")]
        if exchange.command == "POST" and named[1] is None or named[2] is None:
            self.world.violation(f"{exchange.route}: agent id missing in body or header")
        if len({name for name in named if name is not None}) != 1:
            self.world.violation(f"{exchange.route}: agent ids differ: {named}")
            raise Refusal(400, {"detail": "agent ids differ"})
        if not self.credential:
            raise html(500, "Server Error")  # the claim's answer is not stored yet
        bearer = exchange.headers.get("Authorization", "")
        if self.revoked or bearer != "Bearer " + self.credential or self.agent not in named:
            raise Refusal(401, {"detail": "Runtime credential is not valid."})

    def heartbeat(self, exchange, body):
        texts = ["provider", "model", "runtime_version", "message", *(k for k in body if k.startswith(("job_", "verification_")))]
        if wrong := [k for k in texts if not isinstance(body.get(k), str)]:
            self.world.violation(f"heartbeat: {wrong} are no strings")
        if body.get("health") not in ("HEALTHY", "UNHEALTHY") or not isinstance(body.get("provider_ready"), bool):
            self.world.violation(f"heartbeat: health {body.get('health')!r}, provider_ready {body.get('provider_ready')!r}")
        if body.get("job_phase", "") not in PHASES | {""} or body.get("job_status", "") not in STATUSES | {""}:
            self.world.violation(f"heartbeat: phase {body.get('job_phase')!r}, status {body.get('job_status')!r}")
        if body.get("verification_phase", "") not in REVIEW_PHASES | {""} or \
                body.get("verification_status", "") not in STATUSES | {v.lower() for v in VERDICTS} | {""}:
            self.world.violation(f"heartbeat: phase {body.get('verification_phase')!r}, status {body.get('verification_status')!r}")
        now, last = time.monotonic(), self.last_beat
        self.beats, self.beat, self.last_beat = self.beats + 1, body, now
        if last and now - last > 10:
            self.world.violation(f"{now - last:.1f} s between two heartbeats")
        if self.job and body.get(self.job.prefix + "_assignment_id") == self.job.assignment:
            self.job.phases.append(body.get(self.job.prefix + "_phase"))
        if self.status == "ACTIVE" and (body["health"] != "HEALTHY" or not body["provider_ready"]):
            raise html(500, "Server Error")
        answer = {"ok": True, "agent_id": self.agent, "connection_status": "CONNECTED", "qualification_task": None,
                  "job_task": None, "verification_task": None, "delivery_errors": []}
        if self.qualification and not self.qualified.is_set():
            token = "qualification." + secrets.token_urlsafe(24)
            self.qualification["tokens"].add(token)
            answer["qualification_task"] = {k: v for k, v in self.qualification.items() if k not in ("tokens", "answer")} | {"lease_token": token}
        elif self.status == "ACTIVE" and self.job and not self.job.done.is_set():
            self.job.beats += 1
            answer[self.job.kind] = self.job.task()
            self.job.delivered.append(answer[self.job.kind]["lease_token"])
        return 200, {**answer, **self.strays}, {}

    def configuration(self, exchange, _):
        return 200, {"agent": {"id": self.agent, "name": "foreign", "agent_role": self.world.role, "specialisation": "", "languages": ["Python"],
                               "frameworks": [], "testing_tools": [], "task_types": [], "maximum_active_jobs": 1,
                               "maximum_execution_minutes": 60, "allow_new_dependencies": False, "allow_database_migrations": False,
                               "protected_paths": ["LICENSE"]},
                     "runtime": {"provider": self.beat.get("provider", ""), "model": self.beat.get("model", ""), "protocol_version": 1}}, {}

    def check_signature(self, signature, message):
        if not isinstance(signature, str) or "=" in signature or len(unb64(signature)) != 64:
            return False
        base = tempfile.mkdtemp(dir=self.world.root)
        der = bytes.fromhex("302a300506032b6570032100") + self.public_key
        for name, content in (("key", der), ("signature", unb64(signature)), ("message", message.encode())):
            with open(os.path.join(base, name), "wb") as file:
                file.write(content)
        done = subprocess.run(["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-keyform", "DER", "-inkey", "key",
                               "-in", "message", "-sigfile", "signature"], cwd=base, capture_output=True)
        shutil.rmtree(base)
        return done.returncode == 0

    def submit_qualification(self, exchange, body):
        def refuse(text):
            self.world.violation("qualification refused: " + text)
            raise Refusal(409, {"detail": text})
        task = self.qualification
        if body.get("qualification_id") != task["id"]:
            refuse("unknown qualification")
        if body.get("lease_token") not in task["tokens"]:
            refuse("lease token")
        files = body.get("files")
        if body.get("runtime_error") or not isinstance(files, list):
            refuse("runtime_error: " + str(body.get("runtime_error")))
        if [set(f) for f in files] != [{"path", "content"}] or files[0]["path"] != task["qualification_target_path"]:
            refuse(f"files {files}")
        if len(files[0]["content"].encode()) > 20_000 or len(body["test_output"]) > 12_000:
            refuse("too long")
        code = body.get("test_return_code")
        message = f"veyra-qualification-v1:{task['id']}:{sha256(canonical(files))}:{code}"
        if type(code) is not int or not self.check_signature(body.get("signature"), message):
            refuse("signature or return code")
        for key in ("provider", "model", "runtime_version"):
            if not isinstance(body.get(key), str) or not body[key]:
                refuse(key)
        passed = code == 0 and files[0]["content"].replace("\r\n", "\n") == task["answer"]
        if not passed:
            refuse("wrong text or return code")  # kept simple: the real one spends an attempt
        self.status = "ACTIVE"
        self.qualified.set()
        return 200, {"ok": True, "qualification_id": task["id"], "qualification_status": "PASSED", "passed": True,
                     "agent_status": "ACTIVE", "provisioning_stage": "READY"}, {}

    def holder(self, body, names):
        """The assignment whose live lease the body names, else 409."""
        job = next((j for j in self.jobs.values() if j.names == names and j.assignment == body.get(names)), None)
        lease = job.tokens.get(body.get("lease_token")) if job else None
        if lease is None:
            self.world.violation(f"lease token that was never given: {str(body)[:300]}")
            raise Refusal(409, {"detail": "The lease is not valid."})
        if lease != job.lease_id or time.time() > job.leases[lease][0] + 120:
            raise Refusal(409, {"detail": "The lease is over."})
        return job

    def repository_credential(self, exchange, body):
        if set(body) != {"agent_id", "assignment_id", "lease_token"}:
            self.world.violation(f"credential request with {sorted(body)}")
        job = self.holder(body, "assignment_id")
        job.credentials += 1
        if job.credential_faults and job.credential_faults.pop(0):
            raise Refusal(409, {"detail": "GitHub is temporarily unavailable."})
        self.world.forge.tokens[job.repository_token] = job.full_name
        answer = {"token": job.repository_token, "expires_at": iso(3600), "repository": job.full_name,
                  "clone_url": f"{self.world.forge.origin}/{job.full_name}.git",
                  "permissions": {"contents": "write", "pull_requests": "write", "metadata": "read"}}
        return 200, {**answer, **job.options.get("credential", {})}, {}

    def reading_credential(self, exchange, body):
        """A verifier's credential: a new token each time, which the git host knows as one for reading."""
        if set(body) != {"agent_id", "verification_id", "lease_token"}:
            self.world.violation(f"credential request with {sorted(body)}")
        job = self.holder(body, "verification_id")
        job.credentials += 1
        if job.credential_faults and job.credential_faults.pop(0):
            raise Refusal(409, {"detail": "GitHub is temporarily unavailable."})
        token = "ghs_" + secrets.token_hex(18)
        job.repository_tokens.append(token)
        self.world.forge.tokens[token] = job.full_name
        answer = {"token": token, "expires_at": iso(3600), "repository": job.full_name, "write_access": False,
                  "clone_url": f"{self.world.forge.origin}/{job.full_name}.git",
                  "permissions": {"contents": "read", "pull_requests": "read", "metadata": "read"}}
        return 200, {**answer, **job.credential}, {}

    def result(self, exchange, body):
        return self.submitted(self.holder(body, "assignment_id"), self.judge, exchange, body)

    def verdict(self, exchange, body):
        return self.submitted(self.holder(body, "verification_id"), self.judge_report, exchange, body)

    def submitted(self, job, judge, exchange, body):
        raw = exchange.body.replace(body["lease_token"].encode(), b"LEASE")
        if body["lease_token"] not in job.delivered[-2:]:  # the newest, or one that a beat is just replacing
            self.world.violation("a result under an old lease token")
        job.submissions.append((time.time(), raw))
        fault = job.faults.pop(0) if job.faults else ""
        if fault == "409":
            raise Refusal(409, {"detail": "The pull request's files are not listed yet."})
        if fault == "500":
            raise html(500, "Server Error")
        if fault == "429":
            raise Refusal(429, {"detail": "Request was throttled."}, {"Retry-After": 2})
        if fault == "kill":  # before anything is stored
            self.world.daemon.kill()
        if fault in ("kill", "drop before"):
            raise Dropped()
        answer = judge(job, body)
        if fault == "kill after":
            self.world.daemon.kill()
        if fault in ("drop", "kill after"):
            raise Dropped()
        return 200, answer, {}

    def judge(self, job, body):
        def refuse(text):
            self.world.violation(f"result of case {job.number} refused: {text}")
            raise Refusal(409, {"detail": text})
        if set(body) != {"agent_id", "assignment_id", "lease_token", "evidence", "evidence_hash", "signature"}:
            refuse(f"keys {sorted(body)}")
        evidence = body["evidence"]
        try:
            digest = "0x" + sha256(canonical(evidence))
        except ValueError as error:
            self.world.violation(f"evidence that can't be stored: {error}")
            raise html(500, "Server Error") from error
        if job.accepted:
            if job.accepted["outcome"] == "FAILED" and canonical(job.accepted) != canonical(evidence):
                raise Refusal(409, {"detail": "Another result was accepted."})
            return self.taken(job)
        if body["evidence_hash"] != digest:
            refuse(f"hash {body['evidence_hash']} is not {digest}")
        if not self.check_signature(body["signature"], f"veyra-job-result-v1:{job.assignment}:{job.lease_id}:{digest}"):
            refuse("signature")
        faults = check_common(evidence, job)
        succeeded = evidence.get("outcome") == "SUCCEEDED"
        faults += check_success(evidence, job, self.world.forge) if succeeded else check_failure(evidence)
        if faults:
            refuse("; ".join(faults))
        text = evidence.get("failure_message", "").casefold()
        if not succeeded and evidence["failure_stage"] in RETRY_STAGES and any(w in text for w in RETRY_WORDS) and job.attempt < 4:
            job.failures.append(evidence)
            answer = self.taken(job)
            job.lease()
            return answer
        job.accepted = evidence
        job.done.set()
        return self.taken(job)

    def judge_report(self, job, body):
        def refuse(text):
            self.world.violation(f"verdict of case {job.number} refused: {text}")
            raise Refusal(409, {"detail": text})
        if set(body) != {"agent_id", "verification_id", "lease_token", "report", "signature"}:
            refuse(f"keys {sorted(body)}")
        report = body["report"]
        try:
            text = canonical(report)
        except ValueError as error:
            self.world.violation(f"a report that can't be stored: {error}")
            raise html(500, "Server Error") from error
        if time.time() > job.leases[job.lease_id][0]:
            raise Refusal(409, {"detail": "The verification lease has expired."})
        if job.accepted:
            if canonical(job.accepted) != text:
                refuse("another report was accepted")
        elif not self.check_signature(body["signature"], f"veyra-verifier-result-v1:{job.assignment}:{job.lease_id}:0x{sha256(text)}"):
            refuse("signature")
        elif faults := check_report(report, job):
            refuse("; ".join(faults))
        job.accepted = report
        job.done.set()
        return {"ok": True, "verification_id": job.assignment, "status": "COMPLETED", "verdict": report["verdict"],
                "worker_assignment_id": job.worker_assignment}

    def taken(self, job):
        outcome = (job.accepted or {}).get("outcome", "FAILED")
        return {"ok": True, "assignment_id": job.assignment, "assignment_status": outcome, "queue_status": "DONE"}

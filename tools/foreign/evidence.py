"""What the control plane checks in a result, key by key."""
import datetime
import fnmatch
import re

from wire import canonical

# The rows of the failure table that the scenarios below provoke.
FAILURES = {
    "TASK_INVALID": ("runtime_preflight", "The task is invalid: a field or rule is missing, malformed or outside the limits."),
    "UNSAFE_VALIDATION_COMMAND": ("runtime_preflight", "A validation command is not one of the allowed test runners."),
    "CREDENTIAL_REFUSED": ("runtime_preflight", "The repository credential does not fit this job and was refused."),
    "REPOSITORY_MOVED": ("runtime_preflight", "The repository was moved or renamed after the job was funded."),
    "BRANCH_MISSING": ("runtime_preflight", "The target branch does not exist in the repository."),
    "REMOTE_DIVERGED": ("runtime_execution", "The leased branch already holds another commit."),
    "POLICY_PATH_VIOLATION": ("runtime_execution", "The change touches a path outside the job's allowed paths."),
    "PROTECTED_FILE_CHANGED": ("runtime_execution", "The change touches a file that the job or the owner protects."),
    "CHANGE_UNSUPPORTED": ("runtime_execution", "The change holds a file type or a name that cannot be delivered."),
    "CHANGE_TOO_LARGE": ("runtime_execution", "The change has more files or bytes than can be delivered."),
    "SECRETS_FOUND": ("runtime_execution", "The change holds a secret of this runtime and was withheld."),
    "NO_TESTS_RUN": ("runtime_execution", "The detected test command ran no tests."),
    "DEPENDENCY_PREPARATION_FAILED": ("runtime_preflight", "Preparing the dependencies failed."),
    "UNSUPPORTED_TOOLCHAIN": ("runtime_preflight", "No supported toolchain with tests was detected in the repository."),
    "EMPTY_DIFF": ("runtime_execution", "The model returned no changed files."),
    "TESTS_FAILED_AFTER_REPAIR": ("runtime_execution", "The tests still fail after the funded repairs."),
}


def walk(value, path=""):
    yield path, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in pairs:
        yield from walk(inner, f"{path}.{key}")


def check_fields(evidence, table):
    """Each field's type (bool is no integer) and, for texts, its limit in characters."""
    faults = []
    for name, kind, limit in table:
        value = evidence.get(name)
        if type(value) is not kind:
            faults.append(f"{name} is {value!r}")
        elif limit and len(value) > limit:
            faults.append(f"{name} has {len(value)} characters")
    return faults


def check_common(evidence, job):
    faults = [f"float at {path}" for path, value in walk(evidence) if isinstance(value, float)]
    for name, wanted in (("assignment_id", job.assignment), ("lease_id", job.lease_id), ("job_id", job.number)):
        if evidence.get(name) != wanted or type(evidence.get(name)) is not type(wanted):
            faults.append(f"{name} is {evidence.get(name)!r}")
    faults += check_fields(evidence, [("outcome", str, 9), ("provider", str, 80), ("model", str, 160),
                                      ("runtime_version", str, 64), ("summary", str, 2000)])
    # Ours beyond the protocol: all of a success, of a failure what was known by then.
    ours = [("limits_hit", list, 0), ("sandbox", dict, 0), ("usage", dict, 0), ("policy", str, 80),
            ("policy_sha256", str, 64), ("log_sha256", str, 64)]
    faults += check_fields(evidence, [row for row in ours if evidence.get("outcome") == "SUCCEEDED" or row[0] in evidence])
    times = []
    for name in ("started_at", "completed_at"):
        try:
            times.append(datetime.datetime.fromisoformat(evidence[name]))
        except (KeyError, ValueError, TypeError):
            faults.append(f"{name} is {evidence.get(name)!r}")
    if len(times) == 2 and (None in (times[0].tzinfo, times[1].tzinfo) or times[0] > times[1]):
        faults.append(f"times {times}")
    text = canonical(evidence).decode()
    for secret in job.world.secrets():
        if secret in text:
            faults.append("a secret in the evidence")
    return faults


def check_failure(evidence):
    faults = check_fields(evidence, [("failure_stage", str, 80), ("failure_code", str, 80), ("failure_message", str, 1200)])
    row = FAILURES.get(evidence.get("failure_code"))
    if row and (evidence.get("failure_stage"), evidence.get("failure_message")) != row:
        faults.append(f"not the table's row: {evidence.get('failure_stage')}, {evidence.get('failure_message')!r}")
    if not str(evidence.get("failure_message", "")).strip():
        faults.append("empty failure_message")
    return faults


def forbidden(path, rules):
    """Path policy as the control plane applies it: equal, below, or fnmatch."""
    path = path.replace("\\", "/").casefold()
    parts = path.split("/")
    if ".git" in parts or parts[0] == ".env" or re.fullmatch(r"\.env(\..*)?", parts[-1]) or path.startswith(".github/workflows"):
        return True
    for rule in (r.replace("\\", "/").strip().strip("/").casefold() for r in rules):
        stem = rule.removesuffix("/**")
        if path == stem or path.startswith(stem + "/") or (re.search(r"[*?\[]", rule) and fnmatch.fnmatchcase(path, rule)):
            return True
    return False


def check_success(evidence, job, forge):
    faults = check_fields(evidence, [
        ("branch", str, 0), ("base_branch", str, 0), ("base_commit_sha", str, 40), ("commit_sha", str, 40),
        ("pull_request_number", int, 0), ("pull_request_url", str, 0), ("changed_files", list, 900),
        ("environment_setup_command", str, 0), ("environment_setup_output", str, 4000), ("baseline_test_command", str, 0),
        ("baseline_test_return_code", int, 0), ("baseline_test_output", str, 12_000), ("test_command", str, 0),
        ("test_return_code", int, 0), ("test_output", str, 12_000), ("validation_toolchain", str, 0),
        ("validation_command_source", str, 0), ("validation_commands", list, 0), ("repair_attempts", int, 0),
        ("model_output_repair_attempts", int, 0), ("clean_room", bool, 0), ("tree_sha", str, 40)])
    if faults:
        return faults
    branch, commit = job.leases[job.lease_id][1], evidence["commit_sha"]
    repository = forge.path(job.full_name)

    def expect(name, got, wanted):
        if got != wanted:
            faults.append(f"{name}: {got!r}, not {wanted!r}")
    pulls = [p for p in forge.pulls.get(job.full_name, []) if p["head"] == branch]
    expect("pull requests of the branch", len(pulls), 1)
    expect("head of the branch", forge.head(job.full_name, branch), commit)
    if faults or not re.fullmatch("[0-9a-f]{40}", commit):
        return faults + [f"commit_sha {commit}"]
    shown = forge.show(job.full_name, pulls[0])
    prefix = job.task()["delivery"]
    expect("branch", evidence["branch"], branch)
    expect("base branch", (evidence["base_branch"], pulls[0]["base"]), ("main", "main"))
    expect("base commit", evidence["base_commit_sha"], forge.head(job.full_name, "main"))
    expect("pull request", (evidence["pull_request_number"], evidence["pull_request_url"]), (shown["number"], shown["html_url"]))
    expect("pull request's title", pulls[0]["title"], prefix["pull_request_title"])
    expect("pull request's body begins", pulls[0]["body"][:len(prefix["pull_request_body_prefix"])], prefix["pull_request_body_prefix"])
    for raw in (" @example", "![x](http", "http://example.invalid"):
        outside = re.sub(r"(?ms)^(`{3,}).*?^\1", "", pulls[0]["body"])
        if raw in outside:
            faults.append(f"unbroken {raw!r} in the pull request")
    listed = {row["filename"] for row in forge.files(job.full_name, pulls[0])}
    expect("changed files", sorted(evidence["changed_files"]), sorted(listed))
    policy = job.task()["policy"]
    if bad := [p for p in listed if forbidden(p, policy["forbidden_paths"])]:
        faults.append(f"forbidden paths {bad}")
    expect("test code", evidence["test_return_code"], 0)
    expect("tree", evidence["tree_sha"], forge.git(repository, "rev-parse", commit + "^{tree}"))
    expect("clean room", evidence["clean_room"], True)
    expect("policy's name", evidence["policy"], job.world.policy)
    expect("parents", forge.git(repository, "log", "-1", "--format=%P", commit), evidence["base_commit_sha"])
    who = "Veyra Agent <agent@veyra.local>"
    expect("author", forge.git(repository, "log", "-1", "--format=%an <%ae>|%cn <%ce>", commit), f"{who}|{who}")
    expect("message", forge.git(repository, "log", "-1", "--format=%B", commit), f"Veyra job {job.number}: Mend the sums (case {job.number})")
    commands = evidence["validation_commands"]
    funded = policy["required_commands"]
    expect("source of the commands", evidence["validation_command_source"], "funded_policy" if funded else "repository_detection")
    expect("commands", commands, funded or job.options.get("detected"))
    expect("test_command", evidence["test_command"], " ; ".join(commands))
    expect("test_output begins", evidence["test_output"][:len(commands[0]) + 2], "$ " + commands[0])
    expect("baseline_test_output begins", evidence["baseline_test_output"][:len(commands[0]) + 2], "$ " + commands[0])
    pushed = [c for name, c in forge.pushes if name == job.full_name]
    if any(ref != "refs/heads/" + branch for c in pushed for _, _, ref in c if branch in ref):
        faults.append(f"pushed {pushed}")
    return faults

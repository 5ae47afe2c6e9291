package protocol

// Evidence is what a result states, by the names of the wire. Its values are
// strings, integers, booleans, nil, lists and objects: nothing else has a
// canonical text.
type Evidence map[string]any

// The two outcomes of a job.
const (
	OutcomeSucceeded = "SUCCEEDED"
	OutcomeFailed    = "FAILED"
)

// Where the validation commands came from.
const (
	SourceFunded   = "funded_policy"
	SourceDetected = "repository_detection"
)

// The names in the evidence that the control plane reads (protocol section 6).
const (
	KeyOutcome      = "outcome"
	KeyAssignmentID = "assignment_id"
	KeyLeaseID      = "lease_id"
	KeyJobID        = "job_id"

	KeyBranch            = "branch"
	KeyBaseBranch        = "base_branch"
	KeyBaseCommitSHA     = "base_commit_sha"
	KeyCommitSHA         = "commit_sha"
	KeyPullRequestNumber = "pull_request_number"
	KeyPullRequestURL    = "pull_request_url"
	KeyChangedFiles      = "changed_files"

	KeySetupCommand       = "environment_setup_command"
	KeySetupOutput        = "environment_setup_output"
	KeyBaselineCommand    = "baseline_test_command"
	KeyBaselineReturnCode = "baseline_test_return_code"
	KeyBaselineOutput     = "baseline_test_output"
	KeyTestCommand        = "test_command"
	KeyTestReturnCode     = "test_return_code"
	KeyTestOutput         = "test_output"

	KeyValidationToolchain = "validation_toolchain"
	KeyValidationSource    = "validation_command_source"
	KeyValidationCommands  = "validation_commands"
	KeyRepairAttempts      = "repair_attempts"
	KeyModelOutputRepairs  = "model_output_repair_attempts"

	KeyProvider       = "provider"
	KeyModel          = "model"
	KeyRuntimeVersion = "runtime_version"
	KeySummary        = "summary"
	KeyStartedAt      = "started_at"
	KeyCompletedAt    = "completed_at"

	KeyFailureStage   = "failure_stage"
	KeyFailureCode    = "failure_code"
	KeyFailureMessage = "failure_message"
)

// The names of our own, hashed and signed with the rest.
const (
	// KeySandbox is an object of the Key... names below it.
	KeySandbox       = "sandbox"
	KeyBackend       = "backend"
	KeyIsolation     = "isolation"
	KeyImageDigest   = "image_digest"
	KeySeccompDigest = "seccomp_digest"
	KeyLimits        = "limits"
	// KeyProofSHA256 appears only if the host was proven as it is now.
	KeyProofSHA256 = "proof_sha256"

	KeyPolicy       = "policy"
	KeyPolicySHA256 = "policy_sha256"
	// KeyCleanRoom and KeyTreeSHA appear only if the clean room ran.
	KeyCleanRoom = "clean_room"
	KeyTreeSHA   = "tree_sha"
	KeyLogSHA256 = "log_sha256"
	// KeyLimitsHit is a sorted list, empty when none was hit.
	KeyLimitsHit = "limits_hit"
	// KeyUsage is an object of integers.
	KeyUsage = "usage"
)

// Fail turns e into the evidence of a failure by the table's stage and
// sentence. It keeps what else is known.
func (e Evidence) Fail(code Code) {
	f := Lookup(code)
	e[KeyOutcome] = OutcomeFailed
	e[KeyFailureStage] = string(f.Stage)
	e[KeyFailureCode] = string(f.Code)
	e[KeyFailureMessage] = f.Sentence
}

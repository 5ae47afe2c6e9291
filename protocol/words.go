package protocol

// Role is what the owner's agent was funded to be. A worker changes code, a
// verifier judges it; one identity has one role.
type Role string

// The two roles (protocol sections 3 and 4).
const (
	RoleWorker   Role = "WORKER"
	RoleVerifier Role = "VERIFIER"
)

// Phase is the wire's job_phase: what a job is doing, as the client sees it.
type Phase string

// The phases of a paid job, in order (protocol section 4).
const (
	PhasePreparingRepository  Phase = "PREPARING_REPOSITORY"
	PhasePreparingEnvironment Phase = "PREPARING_ENVIRONMENT"
	PhaseBaseline             Phase = "BASELINE_VALIDATION"
	PhaseGenerating           Phase = "GENERATING_IMPLEMENTATION"
	PhaseValidation           Phase = "POST_CHANGE_VALIDATION"
	PhaseRepairing            Phase = "REPAIRING_IMPLEMENTATION"
	PhaseCommit               Phase = "CREATING_COMMIT"
	PhasePushing              Phase = "PUSHING_BRANCH"
	PhasePullRequest          Phase = "CREATING_PULL_REQUEST"
	PhaseSubmitting           Phase = "SUBMITTING_RESULT"
	PhaseSubmitted            Phase = "SUBMITTED"
	PhaseFailed               Phase = "FAILED"
)

// VerificationPhase is the wire's verification_phase.
type VerificationPhase string

// The phases of a verification, in order (protocol section 4).
const (
	VerificationPreparing   VerificationPhase = "PREPARING_REVIEW"
	VerificationCheckout    VerificationPhase = "CHECKING_OUT_COMMIT"
	VerificationEnvironment VerificationPhase = "PREPARING_ENVIRONMENT"
	VerificationValidation  VerificationPhase = "RUNNING_VALIDATION"
	VerificationEvaluating  VerificationPhase = "EVALUATING_REQUIREMENTS"
	VerificationSubmitting  VerificationPhase = "SUBMITTING_VERDICT"
	VerificationCompleted   VerificationPhase = "COMPLETED"
	VerificationFailed      VerificationPhase = "FAILED"
)

// Stage is the wire's failure_stage. Only some stages let the control plane
// give a job out again (see Failure.Retryable).
type Stage string

// The stages of failures (protocol section 6).
const (
	StagePreflight      Stage = "runtime_preflight"
	StageInfrastructure Stage = "runtime_infrastructure"
	StageExecution      Stage = "runtime_execution"
)

// Code names a failure. The table in failuretable.go holds its stage and sentence;
// nobody writes a sentence of his own.
type Code string

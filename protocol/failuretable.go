package protocol

// The kinds of runs in which a code can occur: all, all but qualifications, all
// that change something, paid jobs only.
var (
	rolesAll    = []Use{UseWorker, UseQualification, UseVerifier}
	rolesJob    = []Use{UseWorker, UseVerifier}
	rolesChange = []Use{UseWorker, UseQualification}
	rolesWorker = []Use{UseWorker}
)

// failures is the whole table, one row a code. A sentence holds a retry word if
// and only if another try could cure the failure; a test keeps it so.
var failures = []Failure{
	{CodeTaskInvalid, StagePreflight, "The task is invalid: a field or rule is missing, malformed or outside the limits.", false, rolesAll},
	{CodeUnsafeValidationCommand, StagePreflight, "A validation command is not one of the allowed test runners.", false, rolesAll},
	{CodeCredentialUnavailable, StageInfrastructure, "The repository credential was temporarily unavailable.", true, rolesJob},
	{CodeCredentialRefused, StagePreflight, "The repository credential does not fit this job and was refused.", false, rolesJob},
	{CodeRepositoryUnreachable, StageInfrastructure, "The repository host was temporarily unavailable.", true, rolesJob},
	{CodeRepositoryRefused, StagePreflight, "The repository host refused access with this job's credential.", false, rolesJob},
	{CodeRepositoryMoved, StagePreflight, "The repository was moved or renamed after the job was funded.", false, rolesJob},
	{CodeRepositoryTooLarge, StagePreflight, "The repository is larger than this runtime accepts.", false, rolesJob},
	{CodeRepositoryUnsupported, StagePreflight, "The repository holds names, a format or data that this runtime does not support.", false, rolesJob},
	{CodeBranchMissing, StagePreflight, "The target branch does not exist in the repository.", false, rolesJob},
	{CodeRemoteDiverged, StageExecution, "The leased branch already holds another commit.", false, rolesWorker},
	{CodePushRefused, StageExecution, "The repository host refused the push.", false, rolesWorker},
	{CodePullRequestRefused, StageExecution, "The repository host refused the pull request.", false, rolesWorker},
	{CodePullRequestMismatch, StageExecution, "The pull request does not show the commit and the files that were tested.", false, rolesJob},
	{CodePolicyPathViolation, StageExecution, "The change touches a path outside the job's allowed paths.", false, rolesWorker},
	{CodeProtectedFileChanged, StageExecution, "The change touches a file that the job or the owner protects.", false, rolesWorker},
	{CodeChangeUnsupported, StageExecution, "The change holds a file type or a name that cannot be delivered.", false, rolesWorker},
	{CodeChangeTooLarge, StageExecution, "The change has more files or bytes than can be delivered.", false, rolesWorker},
	{CodeSecretsFound, StageExecution, "The change holds a secret of this runtime and was withheld.", false, rolesWorker},
	{CodeAmbiguousToolchain, StagePreflight, "The repository matches more than one toolchain and no validation command is funded.", false, rolesJob},
	{CodeUnsupportedToolchain, StagePreflight, "No supported toolchain with tests was detected in the repository.", false, rolesJob},
	{CodeToolchainUnavailable, StagePreflight, "A tool that the validation needs is not in this runtime's image.", false, rolesJob},
	{CodeInvalidProjectManifest, StagePreflight, "A project manifest cannot be parsed.", false, rolesJob},
	{CodeDependencyPreparationFailed, StagePreflight, "Preparing the dependencies failed.", false, rolesJob},
	{CodeRegistryDenied, StagePreflight, "The dependencies need a host that the network policy denies.", false, rolesJob},
	{CodeRegistryUnreachable, StageInfrastructure, "A package registry was temporarily unavailable.", true, rolesJob},
	{CodeSandboxStartFailed, StageInfrastructure, "A sandbox was temporarily unavailable: it could not be started.", true, rolesAll},
	{CodeSandboxCrashed, StageInfrastructure, "A sandbox was temporarily unavailable: it ended by itself.", true, rolesAll},
	{CodeSandboxOOM, StageExecution, "A command reached the sandbox's limit of memory.", false, rolesAll},
	{CodeSandboxPids, StageExecution, "A command reached the sandbox's limit of processes.", false, rolesAll},
	{CodeSandboxDisk, StageExecution, "A command reached the sandbox's limit of disk space.", false, rolesAll},
	{CodeSandboxInodes, StageExecution, "A command reached the sandbox's limit of files.", false, rolesAll},
	{CodeSandboxOutput, StageExecution, "A command reached the sandbox's limit of output.", false, rolesAll},
	{CodeSandboxTimeout, StageExecution, "A command reached the sandbox's limit of time.", false, rolesAll},
	{CodeProviderNotConfigured, StagePreflight, "No usable model provider is configured on this runtime.", false, rolesAll},
	{CodeProviderAuthFailed, StagePreflight, "The model provider refused this runtime's key.", false, rolesAll},
	{CodeProviderQuotaExhausted, StagePreflight, "The model provider's account has no quota left.", false, rolesAll},
	{CodeModelNotFound, StagePreflight, "The model provider does not know the configured model.", false, rolesAll},
	{CodeProviderRateLimited, StageInfrastructure, "The model provider kept answering with its rate limit.", true, rolesAll},
	{CodeProviderUnavailable, StageInfrastructure, "The model provider was temporarily unavailable.", true, rolesAll},
	{CodeProviderTimeout, StageInfrastructure, "A request to the model provider timed out.", true, rolesAll},
	{CodeProviderBadResponse, StageExecution, "The model provider sent other data instead of JSON.", true, rolesAll},
	{CodeProviderRequestRejected, StageExecution, "The model provider rejected a request.", false, rolesAll},
	{CodeModelOutputInvalid, StageExecution, "The model returned malformed or incomplete JSON.", true, rolesAll},
	{CodeModelEmptyResponse, StageExecution, "The model returned an empty response.", true, rolesAll},
	{CodeModelRefused, StageExecution, "The model declined the task.", false, rolesAll},
	{CodeContextOverflow, StageExecution, "The task does not fit into the model's context.", false, rolesAll},
	{CodeEngineStartFailed, StagePreflight, "The coding engine could not be started.", false, rolesWorker},
	{CodeEmptyDiff, StageExecution, "The model returned no changed files.", true, rolesChange},
	{CodeAgentStuck, StageExecution, "The coding engine repeated itself without progress.", false, rolesWorker},
	{CodeStepBudgetExhausted, StageExecution, "The job's budget of steps is used up.", false, rolesAll},
	{CodeTokenBudgetExhausted, StageExecution, "The job's budget of tokens is used up.", false, rolesAll},
	{CodeTimeBudgetExhausted, StageExecution, "The job's budget of time is used up.", false, rolesAll},
	{CodeTestsFailedAfterRepair, StageExecution, "The tests still fail after the funded repairs.", false, rolesChange},
	{CodeNoTestsRun, StageExecution, "The detected test command ran no tests.", false, rolesJob},
	{CodeHostNotReady, StageInfrastructure, "This host is temporarily unavailable: not ready.", true, rolesAll},
	{CodeHostDiskFloor, StageInfrastructure, "This host is temporarily unavailable: low disk.", true, rolesAll},
	{CodeHostDraining, StageInfrastructure, "This host is temporarily unavailable: draining.", true, rolesAll},
	{CodeHostBudget, StageInfrastructure, "This host is temporarily unavailable: owner's budget used up.", true, rolesAll},
	{CodeLeaseTooShort, StageInfrastructure, "This host is temporarily unavailable: lease too short.", true, rolesAll},
	{CodeInternalError, StageInfrastructure, "This host is temporarily unavailable: internal fault.", true, rolesAll},
	{CodeResultRefused, StageInfrastructure, "Acceptance of the finished result was temporarily unavailable.", true, rolesWorker},

	// These three are never submitted: they are the reasons of abandoned runs.
	{Code: CodeLeaseLost, Roles: rolesAll},
	{Code: CodeCancelled, Roles: rolesAll},
	{Code: CodeRevoked, Roles: rolesAll},
}

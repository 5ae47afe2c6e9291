package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/pulls"
	"github.com/veyra-labs/veyra-sandboxd/gitops/wire"
	"github.com/veyra-labs/veyra-sandboxd/jobs/coding"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// failure is an error whose code this package chose by itself.
type failure struct {
	code protocol.Code
	op   string
	err  error
}

func fail(code protocol.Code, op string, err error) error {
	return &failure{code: code, op: op, err: err}
}

func (f *failure) Error() string { return fmt.Sprintf("%s: %v", f.op, f.err) }
func (f *failure) Unwrap() error { return f.err }

// limitError is a command of ours that a sandbox limit ended.
type limitError struct {
	limit sandbox.Limit
	inGit bool // the git worker ran into it: the repository is too large
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the sandbox's limit %q was reached", e.limit)
}

// The one table of codes. The packages below know kinds of their own; a test
// walks through all of them.
var (
	sandboxCodes = map[sandbox.Kind]protocol.Code{
		sandbox.KindRefused:  protocol.CodeSandboxStartFailed,
		sandbox.KindStart:    protocol.CodeSandboxStartFailed,
		sandbox.KindCrashed:  protocol.CodeSandboxCrashed,
		sandbox.KindGone:     protocol.CodeHostNotReady,
		sandbox.KindBusy:     protocol.CodeInternalError,
		sandbox.KindNoRoom:   protocol.CodeHostNotReady,
		sandbox.KindTooLarge: protocol.CodeChangeTooLarge,
	}
	gitCodes = map[gitops.Kind]protocol.Code{
		gitops.KindInternal:    protocol.CodeInternalError,
		gitops.KindTooLarge:    protocol.CodeRepositoryTooLarge,
		gitops.KindUnsupported: protocol.CodeRepositoryUnsupported,
		gitops.KindCut:         protocol.CodeRepositoryUnreachable,
		gitops.KindChange:      protocol.CodeChangeUnsupported,
		gitops.KindBroken:      protocol.CodeInternalError,
		gitops.KindIncomplete:  protocol.CodeRepositoryTooLarge,
	}
	wireCodes = []codeOfError{
		{wire.ErrUnreachable, protocol.CodeRepositoryUnreachable},
		{wire.ErrRefused, protocol.CodeRepositoryRefused},
		{wire.ErrMoved, protocol.CodeRepositoryMoved},
		{wire.ErrBranchMissing, protocol.CodeBranchMissing},
		{wire.ErrUnsupported, protocol.CodeRepositoryUnsupported},
		{wire.ErrTooLarge, protocol.CodeRepositoryTooLarge},
		{wire.ErrNoFilter, protocol.CodeRepositoryUnsupported},
		{wire.ErrDiverged, protocol.CodeRemoteDiverged},
		{wire.ErrPushRefused, protocol.CodePushRefused},
		{wire.ErrReceiver, protocol.CodeInternalError},
		{wire.ErrInvalid, protocol.CodeTaskInvalid},
		{pulls.ErrUnreachable, protocol.CodeRepositoryUnreachable},
		{pulls.ErrRefused, protocol.CodePullRequestRefused},
		{pulls.ErrMoved, protocol.CodeRepositoryMoved},
		{pulls.ErrMismatch, protocol.CodePullRequestMismatch},
		{policies.ErrAmbiguous, protocol.CodeAmbiguousToolchain},
		{policies.ErrUnsupported, protocol.CodeUnsupportedToolchain},
		{policies.ErrManifest, protocol.CodeInvalidProjectManifest},
		{policies.ErrRule, protocol.CodeTaskInvalid},
		{policies.ErrTask, protocol.CodeTaskInvalid},
		{ErrCredentialRefused, protocol.CodeCredentialRefused},
		{ErrCredentialUnavailable, protocol.CodeCredentialUnavailable},
	}
	providerCodes = map[provider.Kind]protocol.Code{
		provider.NotConfigured:   protocol.CodeProviderNotConfigured,
		provider.AuthFailed:      protocol.CodeProviderAuthFailed,
		provider.QuotaExhausted:  protocol.CodeProviderQuotaExhausted,
		provider.ModelNotFound:   protocol.CodeModelNotFound,
		provider.RateLimited:     protocol.CodeProviderRateLimited,
		provider.Unavailable:     protocol.CodeProviderUnavailable,
		provider.TimedOut:        protocol.CodeProviderTimeout,
		provider.BadResponse:     protocol.CodeProviderBadResponse,
		provider.Rejected:        protocol.CodeProviderRequestRejected,
		provider.EmptyResponse:   protocol.CodeModelEmptyResponse,
		provider.ContextOverflow: protocol.CodeContextOverflow,
		provider.Declined:        protocol.CodeModelRefused,
	}
	codingCodes = map[coding.Kind]protocol.Code{
		coding.Stuck:         protocol.CodeAgentStuck,
		coding.OutputInvalid: protocol.CodeModelOutputInvalid,
		coding.Empty:         protocol.CodeModelEmptyResponse,
	}
	budgetCodes = map[coding.Budget]protocol.Code{
		coding.BudgetSteps:  protocol.CodeStepBudgetExhausted,
		coding.BudgetTokens: protocol.CodeTokenBudgetExhausted,
		coding.BudgetTime:   protocol.CodeTimeBudgetExhausted,
	}
	limitCodes = map[sandbox.Limit]protocol.Code{
		sandbox.LimitOOM:     protocol.CodeSandboxOOM,
		sandbox.LimitPIDs:    protocol.CodeSandboxPids,
		sandbox.LimitDisk:    protocol.CodeSandboxDisk,
		sandbox.LimitInodes:  protocol.CodeSandboxInodes,
		sandbox.LimitOutput:  protocol.CodeSandboxOutput,
		sandbox.LimitTimeout: protocol.CodeSandboxTimeout,
	}
	violationCodes = map[policies.ViolationKind]protocol.Code{
		policies.ViolationUndeliverable:  protocol.CodeChangeUnsupported,
		policies.ViolationForbidden:      protocol.CodePolicyPathViolation,
		policies.ViolationOutsideAllowed: protocol.CodePolicyPathViolation,
		policies.ViolationProtected:      protocol.CodeProtectedFileChanged,
		policies.ViolationDependencies:   protocol.CodeProtectedFileChanged,
		policies.ViolationMigration:      protocol.CodeProtectedFileChanged,
	}
)

type codeOfError struct {
	err  error
	code protocol.Code
}

// codeOf names a failure. The most particular kind wins; what has none is our
// own fault.
func codeOf(err error) protocol.Code {
	var own *failure
	if errors.As(err, &own) {
		return own.code
	}
	var limit *limitError
	if errors.As(err, &limit) {
		return limit.code()
	}
	for _, known := range wireCodes {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return codeOfKind(err)
}

func (e *limitError) code() protocol.Code {
	if e.inGit && e.limit != sandbox.LimitTimeout {
		return protocol.CodeRepositoryTooLarge
	}
	return limitCodes[e.limit]
}

func codeOfKind(err error) protocol.Code {
	var engine *coding.Error
	var git *gitops.Error
	switch {
	case errors.As(err, &engine) && engine.Kind == coding.BudgetUsed:
		return budgetCodes[engine.Budget]
	case engine != nil:
		return codingCodes[engine.Kind]
	case provider.KindOf(err) != "":
		return providerCodes[provider.KindOf(err)]
	case sandbox.KindOf(err) != "":
		return sandboxCodes[sandbox.KindOf(err)]
	case errors.As(err, &git):
		return gitCodes[git.Kind]
	}
	return protocol.CodeInternalError
}

// violationCode prefers what can never be delivered, then the funded rules.
func violationCode(found []policies.Violation) protocol.Code {
	for _, kind := range []policies.ViolationKind{
		policies.ViolationUndeliverable, policies.ViolationForbidden, policies.ViolationOutsideAllowed,
	} {
		for _, v := range found {
			if v.Kind == kind {
				return violationCodes[kind]
			}
		}
	}
	return violationCodes[found[0].Kind]
}

// testsFailure names why the clean room did not pass. A limit with a non-zero
// code is that limit, never "the tests failed".
func testsFailure(after testRun, detected bool) error {
	switch {
	case after.ended != "":
		return &limitError{limit: after.ended}
	case after.code != 0 && len(after.limits) > 0:
		return &limitError{limit: after.limits[0]}
	case after.empty && detected:
		return fail(protocol.CodeNoTestsRun, "running the tests", errors.New("the detected command ran no tests"))
	}
	if after.passed() {
		return fail(protocol.CodeTestsFailedAfterRepair, "running the tests", errors.New("they ended before their runner told a result"))
	}
	return fail(protocol.CodeTestsFailedAfterRepair, "running the tests", fmt.Errorf("exit status %d", after.code))
}

// abandonment returns the reason why nothing is to be submitted, or "".
// Deadline is the end of the lease.
func abandonment(ctx context.Context, err error, deadline time.Time) string {
	if errors.Is(err, ErrLeaseLost) {
		return string(protocol.CodeLeaseLost)
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), ErrLeaseLost) || !time.Now().Before(deadline) {
			return string(protocol.CodeLeaseLost)
		}
		return string(protocol.CodeCancelled)
	}
	return ""
}

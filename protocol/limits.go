package protocol

import "time"

// What the control plane takes or keeps, in bytes or code points (protocol
// sections 1, 3, 4, 5, 6). Texts are counted in code points, as Python does.
const (
	// MaxBodyBytes is the size a request body must stay below, after JSON
	// escaping; a larger one is answered 400 with HTML.
	MaxBodyBytes = 2_621_440
	// MaxReplyBytes bounds what is read of an answer; 50 MB of task is an
	// attack (G12), an error page can be 200 kB.
	MaxReplyBytes = 4 << 20
	// MaxDepth is how many lists and objects may be open at once.
	MaxDepth = 64

	// MaxOutput bounds a test output in the evidence, in code points.
	MaxOutput = 12_000
	// MaxSetupOutput bounds the output of setting up the environment.
	MaxSetupOutput = 4_000
	// MaxSummary bounds the summary.
	MaxSummary = 2_000
	// MaxCommand bounds a command as evidence states it.
	MaxCommand = 240
	// MaxFailureMessage bounds failure_message and runtime_error.
	MaxFailureMessage = 1_200
	// MaxChangedFiles is how many changed files can be delivered: the control
	// plane reads ten pages of 100, with some room left.
	MaxChangedFiles = 900
	// MaxPullRequestTitle and MaxPullRequestBody bound the pull request.
	MaxPullRequestTitle = 240
	MaxPullRequestBody  = 60_000
	// MaxCommitTitle bounds the title in the commit message.
	MaxCommitTitle = 120
	// MaxQualificationBytes bounds the submitted file, in bytes.
	MaxQualificationBytes = 20_000

	// MaxReportSummary and the others bound a verifier's report (section 7).
	MaxReportSummary     = 3_000
	MaxReportCommand     = 500
	MaxCriterionEvidence = 1_200
	MaxSecurityFindings  = 30
	MaxFindingTitle      = 240
	MaxFindingDetail     = 1_200

	// MaxRuntimeVersion, MaxProvider, MaxModel and MaxProviderMessage bound the
	// texts of a challenge's answer; the first three must not be empty.
	MaxRuntimeVersion  = 64
	MaxProvider        = 80
	MaxModel           = 160
	MaxProviderMessage = 240
	// MaxProgressID and its kin bound the progress in a beat.
	MaxProgressID      = 80
	MaxProgressOnchain = 32
	MaxProgressStatus  = 40
	MaxProgressPhase   = 80
	MaxProgressMessage = 500
	MaxProgressUpdated = 64
	// MinRuntimeCredential is the least length of a runtime credential.
	MinRuntimeCredential = 40
	// MinRepoToken is the least length of a repository token.
	MinRepoToken = 20
)

// What a task may ask for. Where protocol.md names no number it is chosen so
// that an honest client never meets it.
const (
	MaxMinutes          = 240
	MaxRepairs          = 10
	MaxRequiredCommands = 4
	// MaxReviewCommands bounds a verification's commands, whose number the
	// protocol leaves open.
	MaxReviewCommands = 32
	// MaxSubmittedFiles is what the control plane reads of a pull request.
	MaxSubmittedFiles    = 1_000
	MaxPullRequestNumber = 1<<31 - 1
	MaxCommandBytes      = 2_000
	MaxTitle             = 500
	MaxDescription       = 100_000
	MaxStatements        = 200
	MaxStatement         = 10_000
	MaxPaths             = 1_000
	MaxPathBytes         = 4_096
	MaxBranchBytes       = 200
	MaxNameBytes         = 100
	MaxURL               = 2_000
	MaxLeaseTokenBytes   = 8_192
	MaxStarterFiles      = 200
	MaxStarterBytes      = 1 << 20
	MaxTestCommand       = 500
	MaxInstructions      = 50_000
	MaxLease             = 31 * 24 * time.Hour
)

// The rhythm of beats (protocol section 4).
const (
	HeartbeatDefault = 5 * time.Second
	HeartbeatFloor   = 2 * time.Second
	// HeartbeatGap is what no gap between two beats may exceed.
	HeartbeatGap = 10 * time.Second
	// OfflineAfter is when the control plane takes a silent host for gone.
	OfflineAfter = 35 * time.Second
)

// When results are sent (protocol section 2).
const (
	// ResendUntil is how long before the lease's end resending of the same
	// bytes gives way to a revision.
	ResendUntil = 60 * time.Second
	BackoffMin  = time.Second
	BackoffMax  = 30 * time.Second
	// RevokedAfter is how long 401 must last before links are possible again.
	RevokedAfter = 30 * time.Second
)

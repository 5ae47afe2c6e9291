// Package policies holds the owner's rules and everything that judges by them:
// the three built-in policies as data, the owner's files that extend one, limits,
// path rules, the commands that may count as tests, toolchain detection, the
// seccomp profiles, the advisories about runtimes, and the narrowing of the
// owner's rules by a task. It never widens a rule, runs nothing, opens no file
// of the host but the one that Load is given, and keeps no state: every function
// is a question, safe to ask from many goroutines at once.
//
// Start reading at policy.go, then owner.go and effective.go. It may import protocol and
// internal packages only.
package policies

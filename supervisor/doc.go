// Package supervisor is the daemon's centre: it pairs, beats, takes tasks, has
// them worked on, seals what came out, delivers it, recovers and drains. It
// holds the runtime credential, the lease tokens and the journal, and neither
// capability, mount, sandbox, git nor model provider: losing one of those
// cannot stop a beat. Run by itself never starts a process.
//
// Start reading at Supervisor.Run, which starts one goroutine a concern:
//
//	heart.go      beats, for ever, sharing no lock or queue with jobs
//	dispatch.go   takes what beats deliver, one run at a time
//	run.go        accept, execute, seal; verification.go for a verifier
//	outbox.go     sends sealed results until answered for good
//	pairing.go    identity and binding; public.go serves it
//	control.go    what the operator's commands ask
package supervisor

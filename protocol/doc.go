// Package protocol holds the words of this program and the messages that cross
// the wire between a runtime and the Veyra control plane: typed ids, roles,
// phases, failure codes, and the rules and limits of every message. It imports
// nothing of ours and does no I/O. Start reading at tasks.go.
//
// # Words
//
// The same word always means the same thing, in code, logs and documents.
//
// Where it runs. The host is the machine; an instance is one daemon on it with
// one identity. The wire says runtime and connection for these; so do the JSON
// names and nothing else. The supervisor, the signer, the runner, the egress
// and init are this program's processes.
//
// How it is introduced. Pairing happens once: the owner carries a link to the
// control plane, which sends a challenge and then a claim. The identity is the
// key pair with its runtime id; the binding says to which agent and origin it
// belongs. A heartbeat, or beat, is the outbound call that reports and receives.
//
// What is worked on. A task is what a beat carries, an assignment the control
// plane's record of it, an attempt how often it was given out, a lease the
// exclusive right to it until a time. A run is one assignment under one lease;
// for a qualification, one id with one attempt. A role is WORKER or VERIFIER,
// and "worker" means nothing else. A job is the funded work.
//
// How far it is. A step is a numbered part of a job and a file of package jobs;
// a phase is the wire's job_phase; a stage is the wire's failure_stage. The
// phases of the network are always named in full.
//
// Where code runs. A sandbox is the boundary; a container is the object by which
// an OCI runtime or Docker makes one; a backend is our implementation of
// sandboxes; an OCI runtime is the program runc, crun or runsc. A Spec says what
// is asked of a backend. An image is a root file system named by its digest, a
// bundle a directory with a config.json, a toolchain the tools of one language
// in an image. Base, deps and commit layer are the read-only trees that a
// sandbox sees under its own writes; a change set is what the step that changes
// code wrote, collected.
//
// What happens there. Fetch and prepare are the halves of setting up. The
// baseline is the tests' run before the change, to validate is to run them
// after it, and the clean room is the fresh sandbox in which only that run
// counts. Verification is the other role's work and no word for tests. To
// freeze is to stop all writing, to collect to read out, to close to take down,
// to sweep to remove what a crash left.
//
// What is allowed. A policy is the owner's set of rules; to narrow it is to
// tighten it by a task. A limit is a number with a named outcome, a weakening a
// looser setting as a sentence, a probe a measured question to the host. A
// decision is a policy's yes or no.
//
// What is said about it. Evidence is the facts of a run, a finding something
// noticed, a statement what is signed, a submission the evidence with its
// signature, a receipt the control plane's answer. A report is what a verifier
// found, a verdict what it concludes.
//
// How it gets out. To publish is to push and open the pull request; to seal is
// to sign and store; to deliver is to send until there is an answer for good.
// The outbox holds what is sealed and undelivered.
//
// What is secret. A credential gives access to a repository, a secret is any
// text that must not be shown, the key is the signing key and no other.
//
// How it ends. To drain is to take no new work, to stop is to finish first, to
// cancel is to abandon now, to panic is to freeze everything and keep the
// evidence. A lease is lost when the control plane took it, expired when its
// time is over; a run is abandoned when we gave it up, with a reason.
//
// Who makes the change. A provider is a company's API and a model one of its
// models; the engine makes the change with it: loop, single, cli:NAME or
// replay. Usage is what was counted, a budget what is allowed.
package protocol

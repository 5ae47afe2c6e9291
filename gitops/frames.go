package gitops

// The frames on veyra-git's standard streams. Payloads are binary, since a
// path may be any bytes.
//
//	index   in: raw pack bytes to EOF   out: entry…, done | error
//	commit  in: commit, change…, end    out: commit, changed…, pack…, end | error
//	hash    in: hash, entry…, end       out: entry…, done | error
//	ignore  in: path…, end              out: path…, end | error
//	history in: raw pack bytes to EOF   out: base…, done | error
//	difftrees in: raw pack bytes to EOF out: pack…, (base, changed…)…, done | error
//
// The pack frames of difftrees hold the bytes of the head's commit object.
// An error frame may stand in the place of any frame of an answer and ends it.
const (
	frameError   byte = 1
	frameEnd     byte = 2
	frameDone    byte = 3
	frameEntry   byte = 4
	frameCommit  byte = 5
	frameChange  byte = 6
	frameChanged byte = 7
	framePack    byte = 8
	frameHash    byte = 9
	framePath    byte = 10
	frameBase    byte = 11
)

// maxFrame is the longest payload of any frame, in bytes; a pack is cut into
// parts of packPart.
const (
	maxFrame   = 64 << 10
	packPart   = 32 << 10
	maxMessage = 16 << 10
	maxText    = 512
)

// The paths of a sandbox that has the worker in it.
const (
	// WorkerPath is where the sandbox holds veyra-git.
	WorkerPath = "/.veyra/git"
	// ObjectsDir is the object store that the mode index leaves.
	ObjectsDir = "/home/veyra/objects"
	// Workspace is the work tree.
	Workspace = "/workspace"
)

// IndexArgs is the command that reads a pack and writes a commit's tree.
func IndexArgs(commit ObjectID) []string {
	return []string{WorkerPath, "index", "--objects", ObjectsDir, "--workspace", Workspace, "--commit", string(commit)}
}

// CommitArgs is the command that makes a commit of the unpacked change set.
func CommitArgs() []string {
	return []string{WorkerPath, "commit", "--objects", ObjectsDir, "--workspace", Workspace}
}

// HashArgs is the command that computes the work tree's tree id by itself.
func HashArgs() []string { return []string{WorkerPath, "hash", "--workspace", Workspace} }

// IgnoreArgs is the command that matches paths against the work tree's
// .gitignore files. It runs before a change set is unpacked.
func IgnoreArgs() []string { return []string{WorkerPath, "ignore", "--workspace", Workspace} }

// HistoryArgs is the command that reads a pack of commits and answers with the
// merge bases of two of them.
func HistoryArgs(one, other ObjectID) []string {
	return []string{WorkerPath, "history", "--objects", ObjectsDir, "--head", string(one), "--base", string(other)}
}

// DiffArgs is the command that reads a pack with the trees of some commits and
// answers with what differs from each base to head.
func DiffArgs(head ObjectID, bases []ObjectID) []string {
	args := []string{WorkerPath, "difftrees", "--objects", ObjectsDir, "--head", string(head)}
	for _, base := range bases {
		args = append(args, "--base", string(base))
	}
	return args
}

package protocol

import "strings"

// Qualification is a QualificationTask whose every field keeps its rule. A run
// is (ID, Attempt). Only Validate makes one.
type Qualification struct {
	ID           QualificationID
	Attempt      int
	Token        LeaseToken
	Title        string
	Instructions string
	// Target is the one path whose content is to be replaced.
	Target string
	// Starter holds the target's old text and what lies around it.
	Starter []File
	// TestCommand is one line as a shell would be given it; it is split and
	// judged before it runs.
	TestCommand string
}

// StarterText returns what the target holds before it is changed.
func (q Qualification) StarterText() string {
	for _, f := range q.Starter {
		if f.Path == q.Target {
			return f.Content
		}
	}
	return ""
}

// Key checks the fields that name the run and prove the right to it. It fails
// with a *TaskError; then nobody can be told.
func (t *QualificationTask) Key() (QualificationID, int, LeaseToken, error) {
	var c checks
	id := QualificationID(c.uuid("id", t.ID))
	c.that(t.Attempt >= 0 && t.Attempt < 1_000_000, "attempt", "out of range")
	c.token("lease_token", string(t.LeaseToken))
	if c.err != nil {
		return "", 0, "", c.err
	}
	return id, int(t.Attempt), t.LeaseToken, nil
}

// Validate makes a Qualification of a task that came from origin. It fails with
// a *TaskError for the first broken rule (protocol section 5).
func (t *QualificationTask) Validate(origin Origin) (Qualification, error) {
	id, attempt, token, err := t.Key()
	if err != nil {
		return Qualification{}, err
	}
	var c checks
	c.that(t.Type == TypeQualification, "type", "not "+TypeQualification)
	c.that(t.SubmitURL == origin.URL(PathQualification), "submit_url", "not the paired origin with the fixed path")
	c.text("title", t.Title, 0, MaxTitle)
	c.text("instructions", t.Instructions, 1, MaxInstructions)
	c.text("test_command", t.TestCommand, 1, MaxTestCommand)
	c.target(t)
	c.starter(t.StarterFiles)
	if c.err != nil {
		return Qualification{}, c.err
	}
	return Qualification{
		ID: id, Attempt: attempt, Token: token, Title: t.Title, Instructions: t.Instructions,
		Target: t.TargetPath, Starter: t.StarterFiles, TestCommand: t.TestCommand,
	}, nil
}

// target wants one path in three places.
func (c *checks) target(t *QualificationTask) {
	c.relative("qualification_target_path", t.TargetPath)
	c.that(len(t.AllowedSubmissionPaths) == 1 && t.AllowedSubmissionPaths[0] == t.TargetPath,
		"allowed_submission_paths", "not exactly the target")
	found := false
	for _, f := range t.StarterFiles {
		found = found || f.Path == t.TargetPath
	}
	c.that(found, "starter_files", "the target is not among them")
}

// starter refuses files that can't all exist in one tree: the same path twice,
// or a path below a file. Case counts as equal, since it may for a reader.
func (c *checks) starter(files []File) {
	c.that(len(files) <= MaxStarterFiles, "starter_files", "too many items")
	seen := make(map[string]bool, len(files))
	total := 0
	for _, f := range files {
		c.relative("starter_files.path", f.Path)
		c.text("starter_files.content", f.Content, 0, MaxStarterBytes)
		total += len(f.Content)
		folded := strings.ToLower(f.Path)
		c.that(!seen[folded], "starter_files.path", "occurs twice")
		seen[folded] = true
	}
	c.that(total <= MaxStarterBytes, "starter_files", "too large")
	for path := range seen {
		for i := strings.IndexByte(path, '/'); i >= 0; i = nextSlash(path, i) {
			c.that(!seen[path[:i]], "starter_files.path", "lies below another file")
		}
	}
}

// nextSlash returns the index of the slash after the one at i, or -1.
func nextSlash(path string, i int) int {
	next := strings.IndexByte(path[i+1:], '/')
	if next < 0 {
		return -1
	}
	return i + 1 + next
}

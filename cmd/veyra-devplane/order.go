package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// maxOrderBytes bounds what a script may post.
const maxOrderBytes = 8 << 20

// order describes a job for POST /devplane/jobs. Without files it is the
// sample, of which the other fields replace what they name.
type order struct {
	// Owner and Name name the repository; a taken name is used as it stands
	// when no files come with it. Empty: "octo" and a new name.
	Owner string `json:"owner"`
	Name  string `json:"name"`
	// Files are the target branch's files by their paths.
	Files map[string]orderFile `json:"files"`

	Title        string   `json:"title"`
	Description  string   `json:"description"`
	Requirements []string `json:"requirements"`
	Criteria     []string `json:"criteria"`
	// Commands are the funded validation commands; Detected leaves them out, so
	// that the runtime has to find them in the repository.
	Commands []string `json:"commands"`
	Detected bool     `json:"detected"`

	AllowedPaths      []string `json:"allowed_paths"`
	ForbiddenPaths    []string `json:"forbidden_paths"`
	AllowDependencies bool     `json:"allow_new_dependencies"`
	AllowMigrations   bool     `json:"allow_database_migrations"`
	Minutes           int      `json:"minutes"`
	Repairs           int      `json:"repairs"`

	// Steps is what the scripted model does; RepairSteps what it does once it
	// is told of a failed round (empty: Steps again).
	Steps       []orderStep `json:"steps"`
	RepairSteps []orderStep `json:"repair_steps"`
	// FailCriterion is the criterion, counted from 1, that the scripted model
	// tells a verifier is not met; 0: every one is.
	FailCriterion int `json:"fail_criterion"`
}

// orderFile is a file as text or as {"content", "exec", "link"}.
type orderFile githosttest.File

// UnmarshalJSON takes both forms.
func (f *orderFile) UnmarshalJSON(text []byte) error {
	var content string
	if json.Unmarshal(text, &content) == nil {
		*f = orderFile{Content: content}
		return nil
	}
	var whole struct {
		Content string `json:"content"`
		Exec    bool   `json:"exec"`
		Link    string `json:"link"`
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		return errors.New("a file is a text or {content, exec, link}")
	}
	*f = orderFile(whole)
	return nil
}

// orderStep is one answer of the model: a shell command, an edit, the end, or
// plain text.
type orderStep struct {
	Shell string `json:"shell"`
	Edit  *struct {
		Path string `json:"path"`
		Old  string `json:"old"`
		New  string `json:"new"`
	} `json:"edit"`
	Finish string `json:"finish"`
	Text   string `json:"text"`
}

// readOrder reads one JSON object, or nothing for the sample. Unknown names are
// refused, since a misspelt one would silently give another job.
func readOrder(body io.Reader) (order, error) {
	var o order
	decoder := json.NewDecoder(io.LimitReader(body, maxOrderBytes))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&o)
	if errors.Is(err, io.EOF) {
		return o, nil
	}
	if err != nil {
		return o, fmt.Errorf("reading the job: %w", err)
	}
	return o, o.check()
}

var namePart = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (o order) check() error {
	for field, value := range map[string]string{"owner": o.Owner, "name": o.Name} {
		if value != "" && (!namePart.MatchString(value) || strings.Contains(value, "..")) {
			return fmt.Errorf("%s %q is no name of an owner or a repository", field, value)
		}
	}
	for path := range o.Files {
		if !plainPath(path) {
			return fmt.Errorf("path %q leaves the repository", path)
		}
	}
	if len(o.Commands) > 0 && o.Detected {
		return errors.New("a job has commands or finds them, not both")
	}
	if o.FailCriterion == 0 {
		return nil
	}
	return checkCriterion(o.FailCriterion, len(o.withSample().Criteria))
}

func checkCriterion(n, of int) error {
	if n < 0 || n > of {
		return fmt.Errorf("fail_criterion %d is not one of the %d criteria", n, of)
	}
	return nil
}

func plainPath(path string) bool {
	for _, part := range strings.Split(path, "/") {
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") || strings.ContainsAny(part, "\x00\\") {
			return false
		}
	}
	return true
}

// place makes repository, script and job, and returns the job's number.
func (w *world) place(o order) (int64, error) {
	o = o.withSample()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.repository(&o); err != nil {
		return 0, err
	}
	o.Title = w.scripts.add(o.Title, turns(o.Steps), turns(o.RepairSteps))
	w.scripts.fail(o.Title, o.FailCriterion)
	id := w.plane.AddJob(o.spec())
	w.placed[id] = funding{o.Title, len(o.Criteria)}
	return id, nil
}

// repository makes the repository unless it is there already. w.mu is held.
func (w *world) repository(o *order) error {
	if o.Owner == "" {
		o.Owner = "octo"
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("calc-%d", len(w.names)+1)
	}
	key := strings.ToLower(o.Owner + "/" + o.Name)
	if w.names[key] {
		return nil
	}
	files := map[string]githosttest.File{}
	for path, f := range o.Files {
		files[path] = githosttest.File(f)
	}
	if _, err := w.git.CreateRepo(o.Owner, o.Name, files); err != nil {
		return err
	}
	w.names[key] = true
	return nil
}

func (o order) spec() controlplanetest.JobSpec {
	return controlplanetest.JobSpec{
		Owner: o.Owner, Name: o.Name, Private: true,
		Title: o.Title, Description: o.Description, Requirements: anys(o.Requirements), Criteria: anys(o.Criteria),
		AllowedPaths: o.AllowedPaths, ForbiddenPaths: o.ForbiddenPaths,
		AllowDependencies: o.AllowDependencies, AllowMigrations: o.AllowMigrations,
		Minutes: o.Minutes, RequiredCommands: o.Commands, RepairAttempts: o.Repairs,
	}
}

func anys(texts []string) []any {
	var all []any
	for _, text := range texts {
		all = append(all, text)
	}
	return all
}

func turns(steps []orderStep) []providertest.Step {
	var all []providertest.Step
	for _, s := range steps {
		turn := providertest.Step{Shell: s.Shell, Finish: s.Finish, Text: s.Text}
		if s.Edit != nil {
			turn.Edit = &providertest.Edit{Path: s.Edit.Path, Old: s.Edit.Old, New: s.Edit.New}
		}
		all = append(all, turn)
	}
	return all
}

package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
)

// The values of a task's type member.
const (
	TypeQualification = "automatic_qualification"
	TypeJob           = "veyra_paid_job"
)

// QualificationTask is the test an agent passes before it is offered paid work
// (protocol section 5), as it came. Validate makes a Qualification of it.
type QualificationTask struct {
	ID                     string     `json:"id"`
	Type                   string     `json:"type"`
	Attempt                int64      `json:"attempt"`
	TaskVersion            Text       `json:"task_version"`
	Title                  string     `json:"title"`
	Instructions           string     `json:"instructions"`
	TargetPath             string     `json:"qualification_target_path"`
	StarterFiles           []File     `json:"starter_files"`
	AllowedSubmissionPaths []string   `json:"allowed_submission_paths"`
	TestCommand            string     `json:"test_command"`
	LeaseToken             LeaseToken `json:"lease_token"`
	SubmitURL              string     `json:"submit_url"`
}

// File is one text file of a qualification, with its path below the root.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

// JobTask is a paid job (protocol section 6), as it came: every field is
// foreign. Validate makes a Job of it.
type JobTask struct {
	ID                string     `json:"id"`
	Type              string     `json:"type"`
	JobID             int64      `json:"job_id"`
	QueueItemID       Text       `json:"queue_item_id"`
	AssignmentAttempt int64      `json:"assignment_attempt"`
	LeaseID           string     `json:"lease_id"`
	LeaseToken        LeaseToken `json:"lease_token"`
	LeaseExpiresAt    string     `json:"lease_expires_at"`
	CredentialURL     string     `json:"credential_url"`
	SubmitURL         string     `json:"submit_url"`
	Repository        Repository `json:"repository"`
	Work              Work       `json:"work"`
	Policy            TaskPolicy `json:"policy"`
	Delivery          Delivery   `json:"delivery"`
}

// Repository names where a job's code lives. CloneURL is compared, never
// dialled: the address is built from the owner's pinned origin and the names.
type Repository struct {
	Owner        string `json:"owner"`
	Name         string `json:"name"`
	FullName     string `json:"full_name"`
	Private      bool   `json:"private"`
	TargetBranch string `json:"target_branch"`
	CloneURL     string `json:"clone_url"`
}

// Work is what the client funded, in the client's words.
type Work struct {
	Title                 string      `json:"title"`
	Description           string      `json:"description"`
	IssueNumber           Text        `json:"issue_number"`
	IssueURL              Text        `json:"issue_url"`
	TechnicalRequirements []Statement `json:"technical_requirements"`
	AcceptanceCriteria    []Statement `json:"acceptance_criteria"`
}

// TaskPolicy is what the client allows. It tightens the owner's policy and
// never widens it.
type TaskPolicy struct {
	AllowedPaths            []string `json:"allowed_paths"`
	ForbiddenPaths          []string `json:"forbidden_paths"`
	AllowNewDependencies    bool     `json:"allow_new_dependencies"`
	AllowDatabaseMigrations bool     `json:"allow_database_migrations"`
	MaximumExecutionMinutes int64    `json:"maximum_execution_minutes"`
	RequiredCommands        []string `json:"required_commands"`
	MaximumRepairAttempts   int64    `json:"maximum_repair_attempts"`
}

// Delivery says where the result goes.
type Delivery struct {
	Branch                string `json:"branch"`
	PullRequestTitle      string `json:"pull_request_title"`
	PullRequestBodyPrefix string `json:"pull_request_body_prefix"`
}

// Statement is one requirement or criterion. On the wire it is a string or an
// object; Text is empty if it was neither. An object of unknown members is kept
// as its JSON, since a client's wish must not get lost.
type Statement struct {
	Text string
	// VerificationMethod is how the client wants it checked, often empty.
	VerificationMethod string
}

// statementFields are the members of the object form. Besides the documented
// "statement" two near names are read, since clients write these objects.
type statementFields struct {
	Statement          Text `json:"statement"`
	Description        Text `json:"description"`
	Text               Text `json:"text"`
	VerificationMethod Text `json:"verificationMethod"`
}

// UnmarshalJSON takes both forms. It never fails: a list item that is neither
// becomes an empty Statement.
func (s *Statement) UnmarshalJSON(data []byte) error {
	*s = Statement{}
	if len(data) == 0 || data[0] != '{' {
		s.Text = looseText(data)
		return nil
	}
	var f statementFields
	if err := json.Unmarshal(data, &f); err != nil {
		return nil
	}
	s.Text = string(firstText(f.Statement, f.Description, f.Text, Text(data)))
	s.VerificationMethod = string(f.VerificationMethod)
	return nil
}

// MarshalJSON writes the string form, or the object form if there is a method.
func (s Statement) MarshalJSON() ([]byte, error) {
	if s.VerificationMethod == "" {
		return json.Marshal(s.Text)
	}
	return json.Marshal(map[string]string{
		"statement": s.Text, "verificationMethod": s.VerificationMethod,
	})
}

func firstText(texts ...Text) Text {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// Text is a value that is only shown: a string, or a number's digits. Whatever
// else came is the empty Text, because nothing is decided by it.
type Text string

// UnmarshalJSON takes strings and numbers and never fails.
func (t *Text) UnmarshalJSON(data []byte) error {
	*t = Text(looseText(data))
	return nil
}

// Texts is a list that is only shown. A single value counts as a list of one,
// and anything else is an empty list.
type Texts []string

// UnmarshalJSON never fails.
func (t *Texts) UnmarshalJSON(data []byte) error {
	*t = nil
	var list []Text
	if json.Unmarshal(data, &list) != nil {
		list = []Text{Text(looseText(data))}
	}
	for _, text := range list {
		if text != "" {
			*t = append(*t, string(text))
		}
	}
	return nil
}

func looseText(data []byte) string {
	var s string
	if json.Unmarshal(data, &s) == nil {
		return s
	}
	if len(data) > 0 && bytes.IndexByte([]byte("-0123456789"), data[0]) >= 0 {
		return string(data)
	}
	return ""
}

// DecodeJobTask reads a job from a beat's answer. When it fails with a
// *TaskError what could be read is in the task all the same, so that Lease may
// still find whom to tell.
func DecodeJobTask(raw json.RawMessage) (JobTask, error) {
	var t JobTask
	err := decodeTask(raw, &t)
	return t, err
}

// DecodeQualificationTask reads a qualification from a beat's answer, with the
// errors of DecodeJobTask.
func DecodeQualificationTask(raw json.RawMessage) (QualificationTask, error) {
	var t QualificationTask
	err := decodeTask(raw, &t)
	return t, err
}

func decodeTask(raw json.RawMessage, task any) error {
	err := Decode(raw, task, MaxReplyBytes)
	if err == nil {
		return nil
	}
	var wrong *DecodeError
	if errors.As(err, &wrong) {
		return &TaskError{Field: wrong.Field, Why: wrong.Why}
	}
	return &TaskError{Why: err.Error()}
}

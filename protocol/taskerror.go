package protocol

import "fmt"

// TaskError says which field of a task breaks which rule. It becomes
// TASK_INVALID; the why goes into the summary, never into failure_message.
type TaskError struct {
	// Field is the member's path on the wire, for example
	// "policy.maximum_execution_minutes", or empty for the task as a whole.
	Field string
	// Why is a short reason without any foreign text.
	Why string
}

// Error returns field and reason in one line.
func (e *TaskError) Error() string {
	if e.Field == "" {
		return "task: " + e.Why
	}
	return fmt.Sprintf("task field %s: %s", e.Field, e.Why)
}

package supervisor

// mailbox hands the latest value from one goroutine to another without ever
// making the first one wait: a value that was not taken is replaced. Beats
// repeat their task, so nothing is lost by that.
type mailbox[T any] struct{ slot chan T }

func newMailbox[T any]() mailbox[T] { return mailbox[T]{make(chan T, 1)} }

// put replaces what was not taken yet. Only one goroutine may put.
func (m mailbox[T]) put(v T) {
	select {
	case <-m.slot:
	default:
	}
	// Nobody else puts, so there is room now.
	m.slot <- v
}

// values is where the other goroutine takes them from.
func (m mailbox[T]) values() <-chan T { return m.slot }

package linux

import (
	"maps"
	"slices"
	"sync"
)

// Members are the sandboxes of a job, or the jobs of a driver, by name. The zero
// value is empty. All methods may run at once.
type Members[K comparable, V any] struct {
	mu   sync.Mutex // guards what follows
	all  map[K]V
	ever bool // there was one
	shut bool // none is taken any more
}

// Add reports whether the name was free, and members are still taken.
func (m *Members[K, V]) Add(name K, one V) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.all[name]; taken || m.shut {
		return false
	}
	if m.all == nil {
		m.all = map[K]V{}
	}
	m.all[name], m.ever = one, true
	return true
}

// Remove does nothing where there is none of that name.
func (m *Members[K, V]) Remove(name K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
}

// All returns the members in no order.
func (m *Members[K, V]) All() []V {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.all))
}

// Has tells whether there is one of that name.
func (m *Members[K, V]) Has(name K) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, found := m.all[name]
	return found
}

// Shut takes no more, and returns those that are left.
func (m *Members[K, V]) Shut() []V {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shut = true
	return slices.Collect(maps.Values(m.all))
}

// Ever tells whether there ever was a member.
func (m *Members[K, V]) Ever() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ever
}

// WhileEmpty runs f if there is no member, and takes none meanwhile.
func (m *Members[K, V]) WhileEmpty(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) > 0 {
		return nil
	}
	return f()
}

// Closing is an end that may fail halfway, and then goes on with a further call. The
// zero value has not begun. Both methods may run at once.
type Closing struct {
	mu          sync.Mutex // held while it goes on, guards what follows
	begun, over bool
}

// Do runs f unless an earlier call has brought it to its end.
func (c *Closing) Do(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	c.begun = true
	if err := f(); err != nil {
		return err
	}
	c.over = true
	return nil
}

// Unfinished tells whether the last call has failed. One that goes on has not.
func (c *Closing) Unfinished() bool {
	if !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	return c.begun && !c.over
}

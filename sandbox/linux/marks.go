package linux

import (
	"fmt"
	"os"
	"sync"
)

// Where an overlay keeps its marks: attributes of the name space trusted, which
// only the host's root has; in a user namespace those of user, which the kernel
// hides from whoever works in the overlay.
const (
	trustedSpace = "trusted"
	userSpace    = "user"
)

// markSpace is the name space of our overlays' marks.
var markSpace = sync.OnceValue(func() string {
	if isMapped("/proc/self/uid_map") {
		return userSpace
	}
	return trustedSpace
})

// isMapped says whether a process's ids are not simply the host's: then it is in
// a user namespace. What can't be read is taken for the host's own.
func isMapped(path string) bool {
	raw, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var inside, outside, count uint64
	n, err := fmt.Sscan(string(raw), &inside, &outside, &count)
	return n == 3 && err == nil && (inside != 0 || outside != 0 || count != 1<<32-1)
}

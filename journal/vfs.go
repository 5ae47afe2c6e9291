package journal

import (
	"fmt"
	"sync"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// vfsName is SQLite's unix file layer with one change: a relative name stays
// one. SQLite makes every name absolute, so it could not open a state directory
// below one that only root may pass, which the supervisor enters before it
// becomes another user.
const vfsName = "veyra-relative"

// relativeVFS belongs to SQLite once it is registered.
var relativeVFS lib.Tsqlite3_vfs

var registerVFS = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	unix := lib.Xsqlite3_vfs_find(tls, 0)
	name, err := libc.CString(vfsName) // stays allocated
	if err != nil || unix == 0 {
		return fmt.Errorf("finding SQLite's file layer: %w", err)
	}
	libc.Xmemcpy(tls, uintptr(unsafe.Pointer(&relativeVFS)), unix, lib.Tsize_t(unsafe.Sizeof(relativeVFS)))
	relativeVFS.FzName = name
	// A function is stored in such a field as Go stores it in a variable.
	*(*fullPathname)(unsafe.Pointer(&relativeVFS.FxFullPathname)) = keepPathname
	if code := lib.Xsqlite3_vfs_register(tls, uintptr(unsafe.Pointer(&relativeVFS)), 0); code != lib.SQLITE_OK {
		return fmt.Errorf("registering a file layer with SQLite: code %d: %w", code, ErrState)
	}
	return nil
})

// fullPathname is the type of the method xFullPathname.
type fullPathname func(tls *libc.TLS, vfs, name uintptr, size int32, out uintptr) int32

// keepPathname copies the name as it is. What a link at its end would lead to,
// exists has refused before.
func keepPathname(tls *libc.TLS, _, name uintptr, size int32, out uintptr) int32 {
	length := libc.Xstrlen(tls, name) + 1
	if int64(length) > int64(size) {
		return lib.SQLITE_CANTOPEN
	}
	libc.Xmemcpy(tls, out, name, length)
	return lib.SQLITE_OK
}

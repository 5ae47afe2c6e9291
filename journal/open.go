package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// Names in the state directory and in its journal directory.
const (
	lockName     = "lock"
	dirName      = "journal"
	fileName     = "journal.db"
	newName      = "journal.db.new"
	reserveName  = "reserve"
	reserveBytes = 16 << 20 // twice an evidence in both of SQLite's files, and room
	headerText   = "SQLite format 3\x00"
)

// Lock takes the state directory for this process until it ends, and makes the
// directory (0700) if it is missing; an owner's empty one becomes 0700. It comes before everything else that
// touches the state: identity, journal, jobs. The error names the holder.
func Lock(state string) (*durable.Flock, error) {
	if err := durable.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w: %w", ErrState, err)
	}
	if err := adopt(state); err != nil {
		return nil, err
	}
	if err := checkPrivate(state, fs.ModeDir); err != nil {
		return nil, err
	}
	lock, err := durable.Lock(filepath.Join(state, lockName))
	if errors.Is(err, ErrLocked) {
		return nil, fmt.Errorf("the state directory is in use: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w: %w", ErrState, err)
	}
	return lock, nil
}

// adopt closes a directory that the owner made for us, and that holds no state
// yet, to others. One that is in use and open for others is refused after this:
// who knows what they did.
func adopt(state string) error {
	info, err := os.Lstat(state)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return nil // judged by checkPrivate
	}
	for _, name := range []string{dirName, "identity", "signing.log"} {
		if _, err := os.Lstat(filepath.Join(state, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if raw, ok := info.Sys().(*syscall.Stat_t); !ok || int(raw.Uid) != os.Geteuid() {
		return nil
	}
	if err := os.Chmod(state, 0o700); err != nil {
		return fmt.Errorf("closing the state directory: %w: %w", ErrState, err)
	}
	return nil
}

// Open takes the state directory's lock and opens the journal in it. Close lets
// the lock go.
func Open(state string) (*Journal, error) {
	lock, err := Lock(state)
	if err != nil {
		return nil, err
	}
	j, err := OpenLocked(state)
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	j.lock = lock
	return j, nil
}

// OpenLocked opens the journal for a caller that holds Lock(state), and keeps
// holding it until Close. It uses STATE/journal only, so it works behind a
// Landlock ruleset that names no more, once that directory exists. Errors wrap
// ErrState or ErrFull.
func OpenLocked(state string) (*Journal, error) {
	return openWith(state, builtin)
}

func openWith(state string, steps migrations) (*Journal, error) {
	dir := filepath.Join(state, dirName)
	if err := prepare(dir); err != nil {
		return nil, err
	}
	j := &Journal{dir: dir}
	existed, err := j.exists()
	if err != nil {
		return nil, err
	}
	if !existed {
		if err := create(dir, steps); err != nil {
			return nil, err
		}
	}
	// Nothing is opened for writing before all of it has been looked at: the
	// last writer to close would fold a damaged log into the file.
	if err := examine(dir, steps); err != nil {
		return nil, fmt.Errorf("journal in %q: %w", dir, err)
	}
	if err := j.open(steps); err != nil {
		return nil, errors.Join(fmt.Errorf("journal in %q: %w", dir, err), j.Close())
	}
	return j, nil
}

func prepare(dir string) error {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("journal directory: %w: %w", ErrState, err)
	}
	if err := checkPrivate(dir, fs.ModeDir); err != nil {
		return err
	}
	if err := refuseNetwork(dir); err != nil {
		return err
	}
	if err := durable.Sweep(dir); err != nil {
		return fmt.Errorf("journal directory: %w: %w", ErrState, err)
	}
	return nil
}

// checkPrivate wants a file or directory (by type) that is no link, belongs to
// us and opens for nobody else. Root may read what belongs to the daemon's user.
func checkPrivate(path string, kind fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("looking at the state: %w: %w", ErrState, err)
	}
	if info.Mode().Type() != kind {
		return fmt.Errorf("%q is of the wrong type (%v): %w", path, info.Mode().Type(), ErrState)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%q has mode %o, others can use it: %w", path, info.Mode().Perm(), ErrState)
	}
	raw, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(raw.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return fmt.Errorf("%q belongs to another user: %w", path, ErrState)
	}
	return nil
}

// networkTypes are file systems where neither flock nor fsync keeps what SQLite
// needs: NFS, SMB, SMB2, CIFS, 9P, FUSE (sshfs), Ceph, AFS, Coda, NCP, Lustre,
// GPFS, OCFS2, GFS2.
var networkTypes = map[uint32]bool{
	unix.NFS_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true,
	unix.CIFS_SUPER_MAGIC: true, unix.V9FS_MAGIC: true, unix.FUSE_SUPER_MAGIC: true,
	unix.CEPH_SUPER_MAGIC: true, unix.AFS_SUPER_MAGIC: true, unix.AFS_FS_MAGIC: true,
	unix.CODA_SUPER_MAGIC: true, unix.NCP_SUPER_MAGIC: true, 0x0BD00BD0: true,
	0x47504653: true, unix.OCFS2_SUPER_MAGIC: true, 0x01161970: true,
}

func refuseNetwork(dir string) error {
	var found unix.Statfs_t
	if err := unix.Statfs(dir, &found); err != nil {
		return fmt.Errorf("looking at the file system of %q: %w: %w", dir, ErrState, err)
	}
	if networkTypes[uint32(found.Type)] {
		return fmt.Errorf("%q lies on a network or FUSE file system (type %x), use a local disk: %w", dir, found.Type, ErrState)
	}
	return nil
}

// exists tells a first start from a journal that lost its main file: then the
// files around it are still there.
func (j *Journal) exists() (bool, error) {
	path := filepath.Join(j.dir, fileName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, j.refuseOrphans()
	}
	if err := checkPrivate(path, 0); err != nil {
		return false, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("journal: %w: %w", ErrState, err)
	}
	defer file.Close()
	header := make([]byte, len(headerText))
	// An empty file is a new database for SQLite.
	if _, err := file.ReadAt(header, 0); err != nil || string(header) != headerText {
		return false, fmt.Errorf("%q is not a journal: %w", path, ErrState)
	}
	return true, nil
}

func (j *Journal) refuseOrphans() error {
	for _, name := range []string{markName, fileName + "-wal", fileName + "-shm"} {
		if _, err := os.Lstat(filepath.Join(j.dir, name)); err == nil {
			return fmt.Errorf("%q is missing, and %q beside it is there: %w", fileName, name, ErrState)
		}
	}
	return nil
}

// create makes an empty journal of the latest version under another name and
// renames it into place. A crash before that leaves a file that the next start
// removes; after it the journal is whole and only its mark is missing.
func create(dir string, steps migrations) error {
	fresh := filepath.Join(dir, newName)
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := durable.Remove(fresh + suffix); err != nil {
			return fmt.Errorf("making the journal: %w", err)
		}
	}
	if err := os.WriteFile(fresh, nil, 0o600); err != nil { // for its mode
		return fmt.Errorf("making the journal: %w", full(err))
	}
	db, err := connect(fresh, "rw", "auto_vacuum(incremental)")
	if err != nil {
		return err
	}
	if err := errors.Join(steps.apply(db, ""), db.Close()); err != nil {
		return fmt.Errorf("making the journal: %w", full(err))
	}
	if err := errors.Join(give(fresh), syncFile(fresh)); err != nil {
		return fmt.Errorf("making the journal: %w", full(err))
	}
	if err := os.Rename(fresh, filepath.Join(dir, fileName)); err != nil {
		return fmt.Errorf("making the journal: %w", err)
	}
	return durable.SyncDir(dir)
}

// give makes a file that root made belong to the directory's owner: a command
// that root runs beside no daemon must not lock the daemon's user out.
func give(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Lstat(filepath.Dir(path))
	if err != nil {
		return err
	}
	raw, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Lchown(path, int(raw.Uid), int(raw.Gid))
}

func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// connect opens a pool on one file. What a pragma sets holds for a connection,
// so it stands in the name and reaches each of them.
func connect(path, mode string, pragmas ...string) (*sql.DB, error) {
	if err := registerVFS(); err != nil {
		return nil, err
	}
	query := url.Values{"vfs": {vfsName}, "mode": {mode}}
	query["_pragma"] = append(pragmas,
		"busy_timeout(5000)", "foreign_keys(1)", "synchronous(full)", "temp_store(memory)",
		"trusted_schema(0)", "cell_size_check(1)")
	if mode == "rw" {
		query.Set("_txlock", "immediate")
		query["_pragma"] = append(query["_pragma"], "journal_mode(wal)", "secure_delete(1)", "journal_size_limit(8388608)")
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// open makes the two pools, brings the schema up to date and notes how far the
// journal is.
func (j *Journal) open(steps migrations) (err error) {
	path := filepath.Join(j.dir, fileName)
	if j.writer, err = connect(path, "rw"); err != nil {
		return err
	}
	if err := steps.apply(j.writer, j.dir); err != nil {
		return err
	}
	if j.readers, err = connect(path, "ro", "query_only(1)"); err != nil {
		return err
	}
	j.readers.SetMaxOpenConns(4)
	writes, err := countWrites(j.writer)
	if err != nil {
		return err
	}
	if j.mark, err = openMark(filepath.Join(j.dir, markName), writes); err != nil {
		return full(err)
	}
	j.reserve()
	return nil
}

func countWrites(db *sql.DB) (writes int64, err error) {
	err = db.QueryRowContext(context.Background(), "SELECT writes FROM tally WHERE id = 1").Scan(&writes)
	return writes, state(err)
}

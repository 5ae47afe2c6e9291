package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// good is what an engine that can do everything answers.
var good = map[string]any{
	"/info": map[string]any{
		"MemoryLimit": true, "SwapLimit": true, "PidsLimit": true, "CpuCfsPeriod": true, "CpuCfsQuota": true, "CgroupDriver": "cgroupfs",
		"Runtimes": map[string]any{"runc": map[string]any{"path": "runc"}}, "DockerRootDir": "/var/lib/docker/100000.100000",
		"SecurityOptions": []string{"name=seccomp,profile=default", "name=userns"}, "ServerVersion": "20.10.24",
	},
	"/version": map[string]any{"Components": []map[string]any{{"Name": "Engine", "Version": "20.10.24"}, {"Name": "runc", "Version": "1.5.3"}}},
}

// fakeEngine answers as good does, but for what change says.
func fakeEngine(t *testing.T, api string, change map[string]any) *engine {
	t.Helper()
	return engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", api)
		for path, answer := range good {
			if strings.HasSuffix(r.URL.Path, path) {
				_ = json.NewEncoder(w).Encode(merged(answer.(map[string]any), change))
			}
		}
	})
}

func merged(answer, change map[string]any) map[string]any {
	all := map[string]any{}
	for key, value := range answer {
		all[key] = value
	}
	for key, value := range change {
		if _, found := all[key]; found {
			all[key] = value
		}
	}
	return all
}

// engineOf listens at a socket of its own.
func engineOf(t *testing.T, handle http.HandlerFunc) *engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "veyra-fake-")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handle}
	go func() { _ = server.Serve(listener) }()
	e, err := newEngine(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.close()
		_ = errors.Join(server.Close(), os.RemoveAll(dir))
	})
	return e
}

// idOf is a container's id that ends in some letters.
func idOf(end string) string { return strings.Repeat("0", 64-len(end)) + end }

// TestFactsOfAnEngine: what an engine is decides what is asked of it.
func TestFactsOfAnEngine(t *testing.T) {
	f, err := fakeEngine(t, "1.41", nil).facts(t.Context(), "")
	if err != nil || !f.remapped || f.first != 100_000 || f.isolation != sandbox.IsolationUserns || f.runtimeVersion != "1.5.3" || f.unable() != nil {
		t.Errorf("a good engine: %+v, %v", f, err)
	}
	plain := map[string]any{"SecurityOptions": []string{"name=seccomp,profile=builtin"}, "DockerRootDir": "/var/lib/docker"}
	f, err = fakeEngine(t, "1.51", plain).facts(t.Context(), "runc")
	if err != nil || f.remapped || f.isolation != sandbox.IsolationSeccomp || len(f.unable()) != 1 {
		t.Errorf("an engine without remapped ids: %+v, %v", f, err)
	}
	plain["Runtimes"] = map[string]any{"runc": map[string]any{}, "runsc": map[string]any{}}
	_, err = fakeEngine(t, "1.51", plain).facts(t.Context(), "runsc")
	if err == nil || !strings.Contains(err.Error(), "userns-remap") {
		t.Errorf("runsc without remapped ids: %v", err)
	}
	f, err = fakeEngine(t, "1.51", plain).facts(t.Context(), "")
	if err != nil || f.runtime != "runc" {
		t.Errorf("the strongest without remapped ids: %+v, %v", f, err)
	}
	both := map[string]any{"Runtimes": plain["Runtimes"]}
	f, err = fakeEngine(t, "1.51", both).facts(t.Context(), "")
	if err != nil || f.runtime != "runsc" || f.isolation != sandbox.IsolationGVisor || f.runtimeVersion != unknownVersion {
		t.Errorf("an engine with runsc: %+v, %v", f, err)
	}
}

// TestJ07EnginesThatWontDo: each is refused with a sentence that names the reason.
func TestJ07EnginesThatWontDo(t *testing.T) {
	for name, c := range map[string]struct {
		api    string
		change map[string]any
		say    string
	}{
		"too old":             {"1.40", nil, "1.41 or later"},
		"no version":          {"", nil, "1.41 or later"},
		"rootless":            {"1.41", map[string]any{"SecurityOptions": []string{"name=seccomp,profile=default", "name=rootless"}}, "rootless"},
		"no seccomp":          {"1.41", map[string]any{"SecurityOptions": []string{"name=userns"}}, "engine_seccomp"},
		"no memory limit":     {"1.41", map[string]any{"MemoryLimit": false}, "engine_memory"},
		"no limit of tasks":   {"1.41", map[string]any{"PidsLimit": false}, "engine_pids"},
		"no CPU quota":        {"1.41", map[string]any{"CpuCfsQuota": false}, "engine_cpu"},
		"no control groups":   {"1.41", map[string]any{"CgroupDriver": "none"}, "engine_cgroups"},
		"unknown runtimes":    {"1.41", map[string]any{"Runtimes": map[string]any{"kata": map[string]any{}}}, "kata"},
		"ids that are no one": {"1.41", map[string]any{"DockerRootDir": "/var/lib/docker/100000.200000"}, "one block"},
		"ids that are hidden": {"1.41", map[string]any{"DockerRootDir": "/var/lib/docker"}, "one block"},
		"an imitation":        {"1.41", map[string]any{"Components": []map[string]any{{"Name": "Podman Engine", "Version": "4.3.1"}}}, "Podman"},
	} {
		_, err := fakeEngine(t, c.api, c.change).facts(t.Context(), "")
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q in it", name, err, c.say)
		}
	}
	broken := engineOf(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"message":"boom"}`, http.StatusInternalServerError)
	})
	if _, err := broken.facts(t.Context(), ""); err == nil {
		t.Error("an engine that answers 500 to everything is taken")
	}
}

// TestJ07SilentEngine accepts and never answers: every call ends at its deadline,
// the attach too.
func TestJ07SilentEngine(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	e := engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			w.Header().Set("Api-Version", "1.41")
			return
		}
		<-release
	})
	for name, call := range map[string]func(context.Context) error{
		"attach":  func(ctx context.Context) error { _, err := e.attach(ctx, "x"); return err },
		"create":  func(ctx context.Context) error { _, err := e.create(ctx, plan{}); return err },
		"start":   func(ctx context.Context) error { return e.start(ctx, "x") },
		"inspect": func(ctx context.Context) error { _, err := e.inspect(ctx, "x"); return err },
		"remove":  func(ctx context.Context) error { return e.remove(ctx, "x") },
		"list":    func(ctx context.Context) error { _, err := e.list(ctx); return err },
		"facts":   func(ctx context.Context) error { _, err := e.facts(ctx, ""); return err },
		"load":    func(ctx context.Context) error { return e.load(ctx, "x", nil, strings.NewReader("")) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case <-time.After(2 * time.Minute):
			t.Errorf("%s ignores its deadline", name)
		}
		cancel()
	}
}

// TestWarningEndsAStart: an engine that warns does not apply what was asked for.
func TestWarningEndsAStart(t *testing.T) {
	e := engineOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"Id":%q,"Warnings":["Your kernel does not support swap limit capabilities."]}`, idOf("a"))
		}
	})
	if id, err := e.create(t.Context(), plan{}); err == nil || id != idOf("a") {
		t.Errorf("a warning gave %q, %v: want the id, to be removed, and an error", id, err)
	}
}

// TestFailedImportIsAnError: engines say so in a line of a stream that began well.
func TestFailedImportIsAnError(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"status":"sha256:1"}`: true, "": true,
		`{"status":"x"}` + "\n" + `{"error":"no space left on device"}`: false,
		`{"status":`: false, "<html>": false,
	} {
		if err := readProgress(strings.NewReader(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// leftOut are the fields of a container that no sandbox sets, each since its zero
// value is what is wanted on every engine. A field that the client's module gains
// must be decided on here.
var leftOut = []string{
	"Config.ArgsEscaped", "Config.Domainname", "Config.ExposedPorts", "Config.MacAddress", "Config.OnBuild", "Config.Shell",
	"Config.StopSignal", "Config.StopTimeout", "Config.Tty", "Config.Volumes",
	"HostConfig.Annotations", "HostConfig.AutoRemove", "HostConfig.Binds", "HostConfig.Cgroup", "HostConfig.ConsoleSize",
	"HostConfig.ContainerIDFile", "HostConfig.DNS", "HostConfig.DNSOptions", "HostConfig.DNSSearch", "HostConfig.ExtraHosts",
	"HostConfig.GroupAdd", "HostConfig.Isolation", "HostConfig.Links", "HostConfig.OomScoreAdj", "HostConfig.PidMode",
	"HostConfig.PortBindings", "HostConfig.Privileged", "HostConfig.PublishAllPorts", "HostConfig.ShmSize", "HostConfig.StorageOpt",
	"HostConfig.UTSMode", "HostConfig.UsernsMode", "HostConfig.VolumeDriver", "HostConfig.VolumesFrom",
	"Resources.BlkioDeviceReadBps", "Resources.BlkioDeviceReadIOps", "Resources.BlkioDeviceWriteBps", "Resources.BlkioDeviceWriteIOps",
	"Resources.BlkioWeight", "Resources.BlkioWeightDevice", "Resources.CPUCount", "Resources.CPUPercent", "Resources.CPURealtimePeriod",
	"Resources.CPURealtimeRuntime", "Resources.CPUShares", "Resources.CgroupParent", "Resources.CpusetCpus", "Resources.CpusetMems",
	"Resources.DeviceCgroupRules", "Resources.DeviceRequests", "Resources.Devices", "Resources.IOMaximumBandwidth",
	"Resources.IOMaximumIOps", "Resources.KernelMemory", "Resources.KernelMemoryTCP", "Resources.MemoryReservation",
	"Resources.MemorySwappiness", "Resources.NanoCPUs",
}

func TestEveryFieldIsDecidedOn(t *testing.T) {
	config, host := planFor(policies.Limits{MemoryBytes: 1 << 30, PIDs: 64, ShmBytes: 1 << 20}, false).container()
	var empty []string
	for _, part := range []any{*config, *host, host.Resources} {
		value := reflect.ValueOf(part)
		for i := range value.NumField() {
			field := value.Type().Field(i)
			if value.Field(i).IsZero() && field.Name != "Resources" {
				empty = append(empty, value.Type().Name()+"."+field.Name)
			}
		}
	}
	slices.Sort(empty)
	if diff := cmp.Diff(leftOut, empty); diff != "" {
		t.Errorf("fields that are left out (-decided +found):\n%s", diff)
	}
}

func planFor(l policies.Limits, guest bool) plan {
	return plan{
		name: "veyra-x-s1", image: "sha256:1", runtime: "runc", guest: guest, source: "/run/veyra-sandboxd/x/m/s1", instance: "x",
		job: "j", phase: "none", limits: l, cpus: 2, ulimits: []*container.Ulimit{{Name: "nofile", Soft: 64, Hard: 64}}, seccomp: "{}",
	}
}

// TestA06ContainerProperties holds for every container that limits can make.
func TestA06ContainerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := policies.Limits{
			MemoryBytes: rapid.Int64Range(1, 1<<50).Draw(t, "memory"), PIDs: rapid.Int64Range(1, 1<<20).Draw(t, "pids"),
			ShmBytes: rapid.Int64Range(1, 1<<40).Draw(t, "shm"),
		}
		guest := rapid.Bool().Draw(t, "guest")
		config, host := planFor(limits, guest).container()
		if config.Tty || !host.ReadonlyRootfs || host.Privileged || host.AutoRemove || *host.Init || *host.OomKillDisable {
			t.Fatal("terminal, writable root, privileges or an own end")
		}
		if host.MemorySwap != host.Memory || *host.PidsLimit <= 0 || config.NetworkDisabled == guest {
			t.Fatal("swap, tasks without end or a wrong network")
		}
		for _, m := range host.Mounts {
			if m.Type != "bind" || !strings.HasPrefix(m.Source, "/run/veyra-sandboxd/x/m/s1/") || m.BindOptions.Propagation != "private" {
				t.Fatalf("mount %+v", m)
			}
			if slices.Contains([]string{"/", "/proc", "/sys", "/dev"}, m.Target) {
				t.Fatalf("mount at %s", m.Target)
			}
		}
		for at, options := range host.Tmpfs {
			if !strings.Contains(options, "nosuid") || !strings.HasPrefix(options, "ro,") && !strings.Contains(options, "nodev") {
				t.Fatalf("%s with %s", at, options)
			}
		}
	})
}

func TestDemux(t *testing.T) {
	piece := func(kind byte, text string) string {
		return string([]byte{kind, 0, 0, 0, 0, 0, byte(len(text) >> 8), byte(len(text))}) + text
	}
	long := strings.Repeat("o", 60_000)
	var out, noise strings.Builder
	err := demux(&out, &noise, strings.NewReader(piece(1, "a")+piece(2, "e")+piece(1, long)+piece(1, "")+piece(3, "x")))
	if !errors.Is(err, io.EOF) || out.String() != "a"+long || noise.String() != "ex" {
		t.Errorf("%d bytes, %q, %v", out.Len(), noise.String(), err)
	}
	if err := demux(io.Discard, io.Discard, strings.NewReader("\x00\x00\x00\x00\x00\x00\x00\x01x")); !errors.Is(err, errHeader) {
		t.Errorf("a piece of standard input: %v", err)
	}
}

// TestHostileStreamIsDrained: whatever the engine sends, it is read to its end.
func TestHostileStreamIsDrained(t *testing.T) {
	for name, text := range map[string]string{
		"no header":        strings.Repeat("x", 1<<20),
		"a huge length":    "\x01\x00\x00\x00\xff\xff\xff\xff" + strings.Repeat("y", 1<<20),
		"an unknown kind":  "\x09\x00\x00\x00\x00\x00\x00\x01z" + strings.Repeat("y", 1<<20),
		"the engine's own": "\x03\x00\x00\x00\x00\x00\x00\x05error" + strings.Repeat("y", 1<<20),
		"cut":              "\x01\x00",
	} {
		here, there := net.Pipe()
		p, pipes, err := newPump(&stream{here, here, func() error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		_ = pipes.Stdout.Close() // a supervisor that has gone
		if _, err := io.WriteString(there, text); err != nil {
			t.Errorf("%s: the pump stopped reading: %v", name, err)
		}
		_ = there.Close()
		select {
		case <-p.ended:
		case <-time.After(2 * time.Minute):
			t.Errorf("%s: the pump goes on after the end", name)
		}
		p.close()
		_ = pipes.Stdin.Close()
	}
}

package main

import (
	"strings"
	"testing"
)

func TestHostsOutOfReachGetNoLink(t *testing.T) {
	for host, reached := range map[string]bool{
		"worker.example.net:9100": true, "worker.example.net": true, "8.8.8.8:9100": true, "[2a00:1450:4001::1]:9100": true,
		"127.0.0.1:9100": false, "localhost:9100": false, "a.localhost": false, "[::1]:9100": false, "0.0.0.0:9100": false, "[::]:9100": false,
		"10.1.2.3": false, "192.168.1.5:9100": false, "172.16.0.1": false, "100.64.3.4:9100": false, "169.254.1.1": false,
		"[fd00::1]:9100": false, "[fe80::1]:9100": false, "[::ffff:10.0.0.1]:9100": false, "224.0.0.1": false,
		"machine:9100": false, "printer.local:9100": false, "db.corp.internal.": false, "nas.home.arpa": false,
		"127.1": false, "127.0.0.01:9100": false, "10.1": false, "0x7f.0.0.1": false, "127.0.0.0x1": false, "8.8.8.8.": true,
		"worker.4you.net": true,
	} {
		s := defaultSettings()
		s.Public.Host = host
		why := s.unreachable()
		if (why == "") != reached {
			t.Errorf("%s: %q", host, why)
		}
		if why != "" && (!strings.Contains(why, "RUNTIME_PUBLIC_HOST") || strings.Contains(why, "\n")) {
			t.Errorf("%s: the sentence says not what to set: %q", host, why)
		}
		// For a control plane on this machine everything is in reach.
		s.ControlPlane.Origins = append(s.ControlPlane.Origins, "http://127.0.0.1:8000")
		if why := s.unreachable(); why != "" {
			t.Errorf("%s, for an origin on loopback: %q", host, why)
		}
	}
}

func TestLinksNeedTLS(t *testing.T) {
	s := defaultSettings()
	s.Public.Host, s.Public.TLS.Mode = "worker.example.net", tlsOff
	if why := s.unreachable(); !strings.Contains(why, "VEYRA_TLS_MODE") {
		t.Errorf("without TLS: %q", why)
	}
}

func TestTLSSettingsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		tls  tlsSettings
		host string
		says string
	}{
		"proxy":              {tlsSettings{Mode: "proxy"}, "10.0.0.1", ""},
		"files":              {tlsSettings{Mode: "files", Cert: "/etc/v/c.pem", Key: "/etc/v/k.pem"}, "10.0.0.1", ""},
		"no key":             {tlsSettings{Mode: "files", Cert: "/etc/v/c.pem"}, "", "needs public.tls.cert and public.tls.key"},
		"relative":           {tlsSettings{Mode: "files", Cert: "c.pem", Key: "/etc/v/k.pem"}, "", "absolute"},
		"in the root":        {tlsSettings{Mode: "files", Cert: "/c.pem", Key: "/etc/v/k.pem"}, "", "below some directory"},
		"acme":               {tlsSettings{Mode: "acme", ACME: "me@example.net"}, "worker.example.net:9100", ""},
		"acme, no address":   {tlsSettings{Mode: "acme"}, "worker.example.net", ""},
		"acme, an IP":        {tlsSettings{Mode: "acme"}, "192.0.2.1:9100", "IP address"},
		"acme, one word":     {tlsSettings{Mode: "acme"}, "machine:9100", "public name"},
		"acme, bad address":  {tlsSettings{Mode: "acme", ACME: "me <me@example.net>"}, "worker.example.net", "no address"},
		"acme, no one there": {tlsSettings{Mode: "acme", ACME: "me"}, "worker.example.net", "no address"},
		"another":            {tlsSettings{Mode: "https"}, "worker.example.net", "proxy, files, acme or off"},
	} {
		s := defaultSettings()
		s.Public.TLS, s.Public.Host = c.tls, c.host
		err := s.checkTLS()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// value returns the value of a metric with one label value, or without labels.
func value(t *testing.T, m *telemetry.Metrics, name, label string) float64 {
	t.Helper()
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := metric.GetLabel()
			if family.GetName() == "veyra_sandboxd_"+name && (len(labels) == 0 && label == "" || len(labels) == 1 && labels[0].GetValue() == label) {
				return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s{%s}", name, label)
	return 0
}

func TestMetricsBeginWithWhatTheStartShowed(t *testing.T) {
	h := &host{swept: sandbox.Swept{"loop": 2, "of a later version": 1}, imageBytes: 700, weakenings: []string{"one"}}
	m := h.metrics()
	for _, want := range []struct {
		name, label string
		value       float64
	}{
		{"sandbox_swept_total", "loop", 2},
		{"sandbox_swept_total", "other", 1},
		{"images_bytes", "", 700},
	} {
		if got := value(t, m, want.name, want.label); got != want.value {
			t.Errorf("%s{%s} is %v, want %v", want.name, want.label, got, want.value)
		}
	}
	if got := value(t, m, "policy_weakenings", ""); got < 1 {
		t.Errorf("%v weakenings", got)
	}
}

// counting is a provider whose every answer costs the same.
type counting struct{ unconfigured }

func (counting) Chat(context.Context, provider.Request) (provider.Reply, error) {
	return provider.Reply{Usage: provider.Usage{Input: 30, Output: 4}}, nil
}

func TestModelCountsTokens(t *testing.T) {
	metrics := telemetry.New("test")
	m := newModel(defaultSettings(), metrics, slog.New(slog.DiscardHandler))
	m.provider = counting{}
	for range 2 {
		if _, err := m.Chat(t.Context(), provider.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if in, out := value(t, metrics, "provider_tokens_total", "input"), value(t, metrics, "provider_tokens_total", "output"); in != 60 || out != 8 {
		t.Errorf("counted %v and %v tokens", in, out)
	}
}

// Package metrics writes metrics in Prometheus' text format.
package metrics

import (
	"bytes"
	"strconv"
	"strings"
)

// ContentType is the MIME type of the format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Writer collects metrics. The samples of a family are added before the next family begins.
type Writer struct {
	text     bytes.Buffer
	families []Family
}

// Family is a set of samples with the same name and the same labels.
type Family struct {
	Name, Type, Help string
	Labels           []string

	to *Writer
}

// Bytes returns the text.
func (w *Writer) Bytes() []byte { return w.text.Bytes() }

// Families returns the families that were begun.
func (w *Writer) Families() []Family { return w.families }

// Gauge begins a family of values that can fall.
func (w *Writer) Gauge(name, help string, labels ...string) Family {
	return w.begin("gauge", name, help, labels)
}

// Counter begins a family of values that only grow.
func (w *Writer) Counter(name, help string, labels ...string) Family {
	return w.begin("counter", name, help, labels)
}

// Histogram begins a family of histograms.
func (w *Writer) Histogram(name, help string, labels ...string) Family {
	return w.begin("histogram", name, help, labels)
}

func (w *Writer) begin(kind, name, help string, labels []string) Family {
	f := Family{Name: name, Type: kind, Help: help, Labels: labels, to: w}
	w.families = append(w.families, f)
	w.text.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
	return f
}

// Add adds a sample. The values of the labels are in the order of Labels.
func (f Family) Add(v float64, values ...string) { f.add("", v, f.Labels, values) }

// AddHistogram adds a histogram.
func (f Family) AddHistogram(h *Histogram, values ...string) {
	var at []float64
	for _, d := range bounds() {
		at = append(at, d.Seconds())
	}
	var n uint64
	var upTo []uint64
	for _, count := range h.Buckets {
		n += count
		upTo = append(upTo, n)
	}
	f.AddBuckets(at, upTo, h.Sum.Seconds(), values...)
}

// AddBuckets adds a histogram. upTo has the number of values up to each bound, and then of all.
func (f Family) AddBuckets(bounds []float64, upTo []uint64, sum float64, values ...string) {
	values = append([]string{""}, values...)
	names := append([]string{"le"}, f.Labels...)
	for i, n := range upTo {
		values[0] = "+Inf"
		if i < len(bounds) {
			values[0] = number(bounds[i])
		}
		f.add("_bucket", float64(n), names, values)
	}
	f.add("_sum", sum, f.Labels, values[1:])
	f.add("_count", float64(upTo[len(upTo)-1]), f.Labels, values[1:])
}

func (f Family) add(suffix string, v float64, names, values []string) {
	b := &f.to.text
	b.WriteString(f.Name + suffix)
	for i, name := range names {
		if i == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.WriteString(name + `="` + escaped(values[i]) + `"`)
	}
	if len(names) > 0 {
		b.WriteByte('}')
	}
	b.WriteString(" " + number(v) + "\n")
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// escaped returns the value of a label. It may be a network's name, which anybody can choose.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(s, "\ufffd"))
}

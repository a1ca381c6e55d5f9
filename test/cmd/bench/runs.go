package main

import (
	"errors"
	"reflect"
	"slices"
	"time"
)

// report has the medians of several runs.
type report struct {
	*results
	Runs int
	Rows []row // the summary
}

// errRuns means that two runs did not measure the same.
var errRuns = errors.New("compare runs: they did not measure the same")

// newReport returns the medians of one or more runs. A row of the summary is taken from one run, so that its figures belong to its
// ratio.
func newReport(runs []*results) (report, error) {
	r := report{results: &results{}, Runs: len(runs)}
	tables := make([][]row, len(runs))
	for i, run := range runs {
		tables[i] = summarize(run)
		if len(tables[i]) != len(tables[0]) {
			return report{}, errRuns
		}
	}
	for i := range tables[0] {
		var same []row
		for _, table := range tables {
			same = append(same, table[i])
		}
		r.Rows = append(r.Rows, medianBy(same, func(r row) float64 { return r.Key }))
	}
	var values []reflect.Value
	for _, run := range runs {
		values = append(values, reflect.ValueOf(run).Elem())
	}
	return r, setMedians(reflect.ValueOf(r.results).Elem(), values)
}

// medianBy returns the value with the median key; of an even number, the lower of the two in the middle.
func medianBy[T any](values []T, key func(T) float64) T {
	sorted := slices.Clone(values)
	slices.SortStableFunc(sorted, func(a, b T) int {
		switch x, y := key(a), key(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return sorted[(len(sorted)-1)/2]
}

// setMedians sets the fields of results to those of the median run. A measurement of both sides is taken whole from the run with its
// median ratio. What is not measured, such as a name, is taken from the first run.
func setMedians(to reflect.Value, runs []reflect.Value) error {
	switch to.Interface().(type) {
	case compared:
		setMedian(to, runs, compared.key)
		return nil
	case rates:
		setMedian(to, runs, rates.speedup)
		return nil
	case stat:
		setMedian(to, runs, func(s stat) float64 { return float64(s.P50) })
		return nil
	case bill:
		setMedian(to, runs, func(b bill) float64 { return float64(b.Init) })
		return nil
	case time.Duration:
		setMedian(to, runs, func(d time.Duration) float64 { return float64(d) })
		return nil
	}
	to.Set(runs[0])
	var parts []func(reflect.Value) reflect.Value
	switch to.Kind() {
	case reflect.Pointer:
		if to.IsNil() {
			return nil
		}
		to.Set(reflect.New(to.Type().Elem())) // the runs keep their values
		parts = append(parts, reflect.Value.Elem)
	case reflect.Struct:
		for i := range to.NumField() {
			parts = append(parts, func(v reflect.Value) reflect.Value { return v.Field(i) })
		}
	case reflect.Slice:
		if to.IsNil() {
			return nil
		}
		to.Set(reflect.MakeSlice(to.Type(), to.Len(), to.Len()))
		for i := range to.Len() {
			parts = append(parts, func(v reflect.Value) reflect.Value { return v.Index(i) })
		}
	case reflect.Array:
		for i := range to.Len() {
			parts = append(parts, func(v reflect.Value) reflect.Value { return v.Index(i) })
		}
	}
	for _, run := range runs {
		if run.Kind() == reflect.Pointer && run.IsNil() || run.Kind() == reflect.Slice && run.Len() != to.Len() {
			return errRuns
		}
	}
	for _, part := range parts {
		var same []reflect.Value
		for _, run := range runs {
			same = append(same, part(run))
		}
		if err := setMedians(part(to), same); err != nil {
			return err
		}
	}
	return nil
}

func setMedian[T any](to reflect.Value, runs []reflect.Value, key func(T) float64) {
	var values []T
	for _, run := range runs {
		values = append(values, run.Interface().(T))
	}
	to.Set(reflect.ValueOf(medianBy(values, key)))
}

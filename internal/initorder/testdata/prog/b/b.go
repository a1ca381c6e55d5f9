// Package b says when it is initialized.
package b

func init() { println("b") } //nolint:gochecknoinits // what it is for

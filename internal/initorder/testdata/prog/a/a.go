// Package a says when it is initialized.
package a

func init() { println("a") } //nolint:gochecknoinits // what it is for

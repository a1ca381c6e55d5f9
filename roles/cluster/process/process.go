// Package process has what every daemon needs: flags and their help, checks and metrics over HTTP, and the environment. Package service has its
// socket.
package process

import "strings"

// Getenv returns the value of a variable of env, or "". If the name is repeated, the first one counts.
func Getenv(env []string, name string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v
		}
	}
	return ""
}

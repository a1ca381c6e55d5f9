// Package seed gives tests random choices that can be repeated.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// env repeats a test's random choices.
const env = "CNIBOX_SEED"

// Of returns the seed of a test's random choices and logs how to repeat them.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if v := os.Getenv(env); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
	}
	t.Logf("%s=%d repeats the random choices", env, seed)
	return seed
}

// Package keyed finds how what the kernel has differs from what is wanted. Both are objects with keys, of which a side has at most one each.
package keyed

import "iter"

// Kind is what a Change does.
type Kind int

// The kinds of changes.
const (
	Add Kind = iota
	Replace
	Remove
)

// Change is a difference. Have is set unless Kind is Add, and Want unless it is Remove.
type Change[K comparable, H, W any] struct {
	Key  K
	Kind Kind
	Have H
	Want W
}

// Diff yields the differences at some keys, in their order. equal reports whether the kernel has the wanted object at a key where it has one.
// The caller may change both sides meanwhile.
func Diff[K comparable, H, W any](keys iter.Seq[K], have func(K) (H, bool), want func(K) (W, bool), equal func(H, W) bool) iter.Seq[Change[K, H, W]] {
	return func(yield func(Change[K, H, W]) bool) {
		for key := range keys {
			if c, differs := At(key, have, want, equal); differs && !yield(c) {
				return
			}
		}
	}
}

// At is Diff for one key.
func At[K comparable, H, W any](key K, have func(K) (H, bool), want func(K) (W, bool), equal func(H, W) bool) (c Change[K, H, W], differs bool) {
	h, has := have(key)
	w, wants := want(key)
	c = Change[K, H, W]{Key: key, Have: h, Want: w}
	switch {
	case has && wants:
		c.Kind = Replace
		return c, !equal(h, w)
	case has:
		c.Kind = Remove
	}
	return c, has || wants
}

// Maps is Diff for all keys of two maps: first those that are wanted, then the others. Neither are in an order.
func Maps[K comparable, H, W any](have map[K]H, want map[K]W, equal func(H, W) bool) iter.Seq[Change[K, H, W]] {
	return Diff(Keys(have, want), Of(have), Of(want), equal)
}

// Keys yields the keys of two maps, those of both once: first those of want.
func Keys[K comparable, H, W any](have map[K]H, want map[K]W) iter.Seq[K] {
	return func(yield func(K) bool) {
		for key := range want {
			if !yield(key) {
				return
			}
		}
		for key := range have {
			if _, wants := want[key]; !wants && !yield(key) {
				return
			}
		}
	}
}

// Of returns the side of a map.
func Of[K comparable, V any](all map[K]V) func(K) (V, bool) {
	return func(key K) (v V, has bool) {
		v, has = all[key]
		return v, has
	}
}

// Index returns objects by their keys, the first of each, and these keys in the order of the objects.
func Index[K comparable, V any](all []V, key func(V) K) (keys []K, byKey map[K]V) {
	byKey = make(map[K]V, len(all))
	for _, v := range all {
		k := key(v)
		if _, again := byKey[k]; !again {
			keys, byKey[k] = append(keys, k), v
		}
	}
	return keys, byKey
}

// Any reports whether there is a difference.
func Any[C any](differences iter.Seq[C]) bool {
	for range differences {
		return true
	}
	return false
}

// Same is equal for values.
func Same[V comparable](have, want V) bool { return have == want }

// Always is equal if only the keys count.
func Always[H, W any](H, W) bool { return true }

/* How machines lease blocks of a page, give addresses of them, return them and take them over. README.md says what it stands for.
 *
 * A step is a request to the registry, a transaction in node.db, a tick of a clock, or a fault. What an agent does with an answer is part of
 * the request's step, because nobody else sees it before the next one. A request that fails is the same as none, unless it is a write.
 */
#ifndef MACHINES
#define MACHINES 2
#endif
#ifndef BLOCKS
#define BLOCKS 2 /* of one address each */
#endif
#ifndef VALIDITY
#define VALIDITY 1 /* ticks */
#endif
#ifndef GRACE
#define GRACE (2 * VALIDITY)
#endif
#ifndef DRIFT
#define DRIFT 0 /* the ticks by which two clocks may differ */
#endif
#ifndef LATE
#define LATE 1 /* the writes that may be executed late, at a time */
#endif

/* A page, or a copy that an agent has read and changed. An owner is a machine's number plus one, or 0. A copy is written only if the page is
 * still as it was read. So claims need no names: one is NONE, SAME as in the page, or NEW. */
#define NONE 0
#define SAME 1
#define NEW 2
typedef Page {
	bool exists; /* of a late write: it may still be executed */
	byte owner[BLOCKS];
	byte claim[BLOCKS]
}
Page page, late[LATE];

/* What an agent knows of its blocks: nothing, that an older write to the page may still come, or which they are. */
#define UNLISTED 0
#define UNSURE 1
#define SURE 2

typedef Machine {
	/* node.db: the blocks, for how long each is valid, and whether a container has its address. */
	bool block[BLOCKS];
	byte until[BLOCKS];
	bool lease[BLOCKS];
	/* The agent: its blocks as last read, for how long that permits their use, and the ages of others' claims plus one, once read. */
	byte knows;
	bool held[BLOCKS];
	byte fresh;
	byte seen[BLOCKS];
	/* Its write: for how long the reading permits the use of the blocks, and whether the page is still as it was. */
	bool writes, current;
	byte good;
	Page copy;
	/* The time by which the clock is ahead of the slowest one. */
	byte ahead
}
Machine m[MACHINES];
bool over; /* faults have ended, and so has the history */

byte i, j, k, any, dirty, taken; /* used within a step */

inline zero() {
	i = 0; j = 0; k = 0; any = false; dirty = false; taken = false
}

#define own(n, b) (page.owner[b] == (n) + 1)
#define gives(n, b) (m[n].block[b] && m[n].until[b] > 0)
/* The pages that an agent reads in a pass are those of its blocks, and those with a write that may still come. */
#if BLOCKS == 1
#define concerns(n) (m[n].knows == UNSURE || m[n].held[0])
#else
#define concerns(n) (m[n].knows == UNSURE || m[n].held[0] || m[n].held[1])
#endif
#define idle(n) (!m[n].writes && m[n].knows == SURE)

/* A machine gives addresses only of blocks that are its own in the page, so no two machines give the same one. */
inline check() {
	for (i : 0 .. MACHINES - 1) {
		for (j : 0 .. BLOCKS - 1) {
			assert(own(i, j) || !gives(i, j))
		}
	}
	zero()
}

inline clear(p) {
	p.exists = false;
	for (j : 0 .. BLOCKS - 1) {
		p.owner[j] = 0;
		p.claim[j] = NONE
	}
}

/* The registry executes a write. Other copies are not current after that. */
inline execute(p) {
	for (j : 0 .. BLOCKS - 1) {
		if
		:: page.owner[j] != 0 && page.owner[j] != p.owner[j] ->
			k = page.owner[j] - 1;
			/* A block with a container is not returned, and not taken while its machine reads the page in time. */
			assert(p.owner[j] != 0 || !m[k].lease[j]);
			assert(p.owner[j] == 0 || !m[k].held[j] || m[k].fresh == 0)
		:: else
		fi;
		page.owner[j] = p.owner[j];
		for (i : 0 .. MACHINES - 1) {
			m[i].seen[j] = (p.claim[j] == SAME -> m[i].seen[j] : 0)
		}
		page.claim[j] = (p.claim[j] == NONE -> NONE : SAME)
	}
	page.exists = true;
#ifndef NO_VERSION
	for (i : 0 .. MACHINES - 1) {
		m[i].current = false;
		clear(m[i].copy)
	}
	for (i : 0 .. LATE - 1) {
		clear(late[i])
	}
#endif
}

/* The agent knows its blocks, and writes them to node.db. It forgets those that are not valid, except one to restore for its container. To
 * write them later is the same, because their time counts from the reading. */
inline know(n, time) {
	m[n].knows = SURE;
	m[n].fresh = 0;
	for (j : 0 .. BLOCKS - 1) {
		m[n].held[j] = own(n, j);
		if
		:: own(n, j) -> m[n].fresh = time; m[n].until[j] = time; m[n].block[j] = true
		:: else
		fi;
		m[n].block[j] = m[n].until[j] > 0 || m[n].block[j] && m[n].lease[j]
	}
}

inline end(n) {
	m[n].writes = false;
	m[n].current = false;
	m[n].good = 0;
	clear(m[n].copy)
}

inline succeed(n) {
	know(n, m[n].good);
	end(n)
}

/* The agent knows nothing of its blocks, or no more. */
inline doubt(n, what) {
	m[n].knows = what;
	m[n].fresh = 0;
	for (j : 0 .. BLOCKS - 1) {
		m[n].held[j] = false
	}
}

/* A write has no answer. */
inline fail(n) {
#ifdef TRUST_WRITE
	for (j : 0 .. BLOCKS - 1) {
		if
		:: m[n].copy.owner[j] == n + 1 -> m[n].held[j] = true; m[n].until[j] = m[n].good; m[n].block[j] = m[n].good > 0
		:: else
		fi
	}
	m[n].fresh = m[n].good;
	m[n].knows = SURE;
#else
	doubt(n, UNSURE);
#endif
	end(n)
}

#define VERIFY 0
#define TAKE 1
#define GIVEBACK 2
#define RESTORE 3
#define TAKEOVER 4

/* The agent reads the page and changes its copy. which is a block, or the machine whose blocks it takes over. */
inline change(n, what, which) {
	dirty = m[n].knows == UNSURE && page.exists;
	taken = false;
	for (j : 0 .. BLOCKS - 1) {
		m[n].copy.owner[j] = page.owner[j];
		m[n].copy.claim[j] = page.claim[j];
#ifndef KEEP_CLAIM
		if
		:: own(n, j) && page.claim[j] != NONE -> m[n].copy.claim[j] = NONE; dirty = true
		:: else
		fi;
#endif
		if
		:: (what == TAKE && !taken || what == RESTORE && which == j) && page.owner[j] == 0 ->
			m[n].copy.owner[j] = n + 1;
			taken = true;
			dirty = true
		:: what == RESTORE && which == j && page.owner[j] != 0 && !own(n, j) ->
			m[n].block[j] = false;
			m[n].until[j] = 0
		:: what == GIVEBACK && which == j && own(n, j) ->
			m[n].copy.owner[j] = 0;
			m[n].copy.claim[j] = NONE;
			dirty = true
		:: what == TAKEOVER && page.owner[j] == which + 1 ->
			if
			:: page.claim[j] == NONE -> m[n].copy.claim[j] = NEW; dirty = true
			:: page.claim[j] != NONE && m[n].seen[j] == 0 -> m[n].seen[j] = 1
			:: page.claim[j] != NONE && m[n].seen[j] > GRACE && !taken ->
				m[n].copy.owner[j] = n + 1;
				m[n].copy.claim[j] = NONE;
				taken = true;
				dirty = true
			:: else
			fi
		:: else
		fi
	}
	m[n].good = VALIDITY;
	if
	:: dirty -> m[n].writes = true; m[n].current = true
	:: else -> succeed(n)
	fi
}

/* The agent reads all pages, when it starts and once a day. */
inline list(n) {
	any = false;
	for (j : 0 .. BLOCKS - 1) {
		any = any || own(n, j)
	}
	if
#ifndef NO_REWRITE
	:: any -> doubt(n, UNSURE)
#endif
	:: else -> know(n, VALIDITY)
	fi
}

/* giveBack removes a block from node.db first, in a transaction that finds no container. */
inline giveBack(n, b) {
#ifndef GIVEBACK_FIRST
	m[n].block[b] = false;
	m[n].until[b] = 0;
#endif
	change(n, GIVEBACK, b)
}

inline postpone(n) {
	i = 0;
	do
	:: late[i].exists -> i++
	:: else -> break
	od;
	late[i].exists = true;
	for (j : 0 .. BLOCKS - 1) {
		late[i].owner[j] = m[n].copy.owner[j];
		late[i].claim[j] = m[n].copy.claim[j]
	}
}

inline kill(n) {
	doubt(n, UNLISTED);
	for (j : 0 .. BLOCKS - 1) {
		m[n].seen[j] = 0
	}
	end(n)
}

inline boot(n) {
	kill(n);
	for (j : 0 .. BLOCKS - 1) {
		m[n].block[j] = false;
		m[n].until[j] = 0;
		m[n].lease[j] = false
	}
}

inline tick(n) {
	for (j : 0 .. BLOCKS - 1) {
		m[n].until[j] = m[n].until[j] - (m[n].until[j] > 0 -> 1 : 0);
		m[n].block[j] = m[n].block[j] && (m[n].until[j] > 0 || m[n].lease[j]);
		m[n].seen[j] = m[n].seen[j] + (m[n].seen[j] > 0 && m[n].seen[j] <= GRACE -> 1 : 0)
	}
	m[n].fresh = m[n].fresh - (m[n].fresh > 0 -> 1 : 0);
	m[n].good = m[n].good - (m[n].good > 0 -> 1 : 0)
}

/* While it is unsure, an agent writes the page before it does anything else. It may also do both in one write, or go on with the pass
 * after a failed write: this is the same as two. */
proctype Agent(byte n) provided (!over) {
endless: do
	:: d_step { !m[n].writes && m[n].knows != UNSURE -> printf("machine %d lists pages\n", n); list(n); check() }
	:: d_step { !m[n].writes && concerns(n) -> printf("machine %d verifies\n", n); change(n, VERIFY, 0); check() }
	:: d_step { idle(n) -> printf("machine %d takes a free block\n", n); change(n, TAKE, 0); check() }
	:: d_step { m[n].writes && m[n].current -> printf("machine %d writes\n", n); execute(m[n].copy); succeed(n); check() }
	:: d_step { m[n].writes && !m[n].current -> printf("machine %d loses a race\n", n); end(n); zero() } /* another write was first */
	/* The write is lost, or its answer, or it is executed late. */
	:: d_step { m[n].writes -> printf("the write of machine %d is lost\n", n); fail(n); check() }
	:: d_step { m[n].writes && m[n].current -> printf("the write of machine %d is executed, its answer lost\n", n); execute(m[n].copy); fail(n); check() }
	:: d_step { m[n].writes && m[n].current && !late[LATE - 1].exists -> printf("the write of machine %d is late\n", n); postpone(n); fail(n); check() }
	/* The agent is killed, or the machine boots. */
	:: d_step { m[n].knows != UNLISTED -> printf("agent %d is killed\n", n); kill(n); zero() }
	:: d_step { true -> printf("machine %d boots\n", n); boot(n); zero() }
	od
}

/* The plugin's ADD and DEL, and the agent's changes of one block. */
proctype Block(byte n, b) provided (!over) {
endless: do
	:: d_step { gives(n, b) && !m[n].lease[b] -> printf("machine %d: ADD from block %d\n", n, b); m[n].lease[b] = true; check() }
	:: d_step { m[n].lease[b] -> printf("machine %d: DEL from block %d\n", n, b); m[n].lease[b] = false; m[n].block[b] = m[n].until[b] > 0; zero() }
	:: d_step { idle(n) && m[n].block[b] && m[n].lease[b] && !m[n].held[b] -> printf("machine %d restores block %d\n", n, b); change(n, RESTORE, b); check() }
	:: d_step { idle(n) && m[n].held[b] && !m[n].lease[b] -> printf("machine %d returns block %d\n", n, b); giveBack(n, b); check() }
	od
}

proctype Takeover(byte n, v) provided (!over) {
endless: do
	:: d_step { idle(n) -> printf("machine %d claims or takes blocks of machine %d\n", n, v); change(n, TAKEOVER, v); check() }
	od
}

proctype Registry(byte w) provided (!over) {
endless: do
	:: d_step { late[w].exists -> printf("the late write %d is executed\n", w); execute(late[w]); clear(late[w]); check() }
	od
}

#if DRIFT == 0
proctype Clock() provided (!over) {
endless: do
	:: d_step { true -> printf("a tick\n");
		for (i : 0 .. MACHINES - 1) {
			tick(i)
		}
		zero()
	}
	od
}
#else
proctype Clock(byte n) provided (!over) {
endless: do
	:: d_step { m[n].ahead < DRIFT -> printf("a tick of the clock of machine %d\n", n);
		tick(n);
		m[n].ahead++;
		any = true;
		for (i : 0 .. MACHINES - 1) {
			any = any && m[i].ahead > 0
		}
		for (i : 0 .. MACHINES - 1) {
			m[i].ahead = m[i].ahead - (any -> 1 : 0)
		}
		zero()
	}
	od
}
#endif

/* One pass of an agent without a fault, of a machine without containers and demands. */
inline pass(n) {
	if
#ifdef NO_RELIST
	:: m[n].knows == UNLISTED -> list(n)
#else
	:: m[n].knows != UNSURE -> list(n)
#endif
	:: else
	fi;
	if
	:: concerns(n) -> change(n, VERIFY, 0); answer(n)
	:: else
	fi;
	for (b : 0 .. BLOCKS - 1) {
		if
		:: m[n].held[b] -> giveBack(n, b); answer(n)
		:: else
		fi
	}
}

inline answer(n) {
	if
	:: m[n].writes -> execute(m[n].copy); succeed(n)
	:: else
	fi
}

/* From each state: if faults and containers end, the agents of the machines that live return all their blocks. Then one of them gets the
 * blocks of the others. Machines are alike, so it does not matter which ones live. */
proctype End(byte alive) provided (!over) {
	byte n, b, round;
endless:
	d_step { true -> printf("faults and containers end, %d machines live\n", alive);
		for (n : 0 .. MACHINES - 1) {
			for (b : 0 .. BLOCKS - 1) {
				m[n].lease[b] = false
			}
			if
			:: m[n].writes -> fail(n)
			:: else
			fi
		}
		for (round : 0 .. 1) {
			for (n : 0 .. MACHINES - 1) {
				if
				:: n < alive -> pass(n)
				:: else
				fi
			}
		}
		for (b : 0 .. BLOCKS - 1) {
			assert(page.owner[b] == 0 || page.owner[b] > alive)
		}
		n = 0;
		for (round : 0 .. GRACE + BLOCKS + 1) { /* claims, reads the claims, waits and takes one block after the other */
			for (b : 0 .. MACHINES - 1) {
				if
				:: b != n -> change(n, TAKEOVER, b); answer(n)
				:: else
				fi
			}
			for (b : 0 .. MACHINES - 1) {
				tick(b)
			}
		}
		for (b : 0 .. BLOCKS - 1) {
			assert(page.owner[b] == 0 || own(n, b))
		}
		for (n : 0 .. MACHINES - 1) {
			boot(n);
			m[n].ahead = 0
		}
		for (b : 0 .. LATE - 1) {
			clear(late[b])
		}
		clear(page);
		n = 0; b = 0; round = 0;
		over = true;
		zero()
	}
}

init {
	atomic {
		byte n, b;
		for (n : 0 .. MACHINES - 1) {
			run Agent(n);
#if DRIFT > 0
			run Clock(n);
#endif
			for (b : 0 .. BLOCKS - 1) {
				run Block(n, b)
			}
			for (b : 0 .. MACHINES - 1) {
				if
				:: b != n -> run Takeover(n, b)
				:: else
				fi
			}
		}
		for (b : 0 .. LATE - 1) {
			run Registry(b)
		}
#if DRIFT == 0
		run Clock();
#endif
		for (n : 1 .. MACHINES) {
			run End(n)
		}
		n = 0;
		b = 0
	}
}

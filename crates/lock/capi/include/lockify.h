/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Cluster-wide locks for C programs: liblockify.so.
 *
 * Every call that can fail returns LOCKIFY_OK or another lockify_code; lockify_message() then says what
 * happened and what to do, until the thread's next call. Any thread may make any call; calls about one
 * lock wait for each other. Handles may be ended in any order.
 */
#ifndef LOCKIFY_H
#define LOCKIFY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A session with the lock daemon, a lockspace of it, a lock that is held. */
typedef struct lockify lockify_t;
typedef struct lockify_space lockify_space_t;
typedef struct lockify_lock lockify_lock_t;

enum lockify_code {
	LOCKIFY_OK = 0,
	LOCKIFY_INVALID = 1,	   /* an argument is wrong */
	LOCKIFY_NO_DAEMON = 2,	   /* no lock daemon, or not this version's, answers on the socket */
	LOCKIFY_DISCONNECTED = 3,  /* the session has ended: its locks are lost; connect again */
	LOCKIFY_WOULD_BLOCK = 4,   /* LOCKIFY_NOQUEUE, and somebody holds a conflicting lock */
	LOCKIFY_TIMED_OUT = 5,	   /* not granted within the time given */
	LOCKIFY_CANCELED = 6,	   /* somebody took the operation back */
	LOCKIFY_DEADLOCK = 7,	   /* the conversion would wait for one that waits for it */
	LOCKIFY_LOST = 8,	   /* the lock is no longer held: abandon what it protected */
	LOCKIFY_NO_SPACE = 9,	   /* there is no such lockspace on this node */
	LOCKIFY_EXISTS = 10,	   /* a lockspace that was to be new exists */
	LOCKIFY_BUSY = 11,	   /* the lock, or the lockspace, is in use */
	LOCKIFY_NOT_PERMITTED = 12, /* only root and the daemon's user may do it */
	LOCKIFY_LIMIT = 13,	   /* as many locks or lockspaces as there may be */
	LOCKIFY_FAILED = 14,	   /* the message says what */
	LOCKIFY_NOT_MEMBER = 15	   /* the node is not in the lockspace now, for lack of a quorum or
				      because it leaves, and LOCKIFY_NOQUEUE: try later */
};

/* Modes, from the weakest to the strongest; CW and PR exclude each other and are equally strong. */
enum lockify_mode {
	LOCKIFY_NL = 0, /* null: marks interest, excludes nobody */
	LOCKIFY_CR = 1, /* concurrent read: excludes EX */
	LOCKIFY_CW = 2, /* concurrent write: excludes PR, PW and EX */
	LOCKIFY_PR = 3, /* protected read: excludes CW, PW and EX */
	LOCKIFY_PW = 4, /* protected write: excludes all but NL and CR */
	LOCKIFY_EX = 5	/* exclusive: excludes all but NL */
};

/* Flags of requests and conversions; values are libdlm's (LKF_*). */
#define LOCKIFY_NOQUEUE 0x00000001u	/* fail with LOCKIFY_WOULD_BLOCK instead of waiting */
#define LOCKIFY_VALBLK 0x00000008u	/* transfer the value block */
#define LOCKIFY_QUECVT 0x00000010u	/* conversions: do not overtake others that wait */
#define LOCKIFY_IVVALBLK 0x00000020u	/* conversions, unlocks: the value block is not to be trusted */
#define LOCKIFY_CONVDEADLK 0x00000040u	/* conversions: rather give the mode up than fail by deadlock */
#define LOCKIFY_PERSISTENT 0x00000080u	/* stays as an orphan when the session ends */
#define LOCKIFY_NODLCKWT 0x00000100u	/* conversions: do not fail by deadlock */
#define LOCKIFY_EXPEDITE 0x00000400u	/* requests of NL: granted at once */
#define LOCKIFY_NOQUEUEBAST 0x00000800u /* with NOQUEUE: tell those in the way all the same */
#define LOCKIFY_HEADQUE 0x00001000u	/* wait at the head of the queue */
#define LOCKIFY_NOORDER 0x00002000u	/* granted as soon as nobody holds a conflicting lock */
#define LOCKIFY_ORPHAN 0x00004000u	/* requests: take over an orphan of this name and mode */
#define LOCKIFY_ALTPR 0x00008000u	/* be content with PR */
#define LOCKIFY_ALTCW 0x00010000u	/* be content with CW */
#define LOCKIFY_NOTIFY 0x00080000u	/* requests: the object is new, and nobody else can know its name */

/* Flags of the last completion (lockify_flags) */
#define LOCKIFY_DEMOTED 0x1u	 /* the mode was given up on the way: validate again what it protects */
#define LOCKIFY_VALNOTVALID 0x2u /* the value block is not to be trusted */
#define LOCKIFY_ALTMODE 0x4u	 /* granted in the alternative mode */

/* What is asked for. Set it to LOCKIFY_REQUEST_INIT first; the rest is optional. */
struct lockify_request {
	size_t size;	 /* of this structure */
	int mode;	 /* enum lockify_mode */
	uint32_t flags;	 /* LOCKIFY_NOQUEUE ... */
	int64_t timeout; /* milliseconds to wait at most; negative: as long as it takes */
	/*
	 * New locks: called on a thread of the library when the lock blocks somebody who wants `mode`.
	 * May come late or more than once; may make any call, also about this lock. Not before
	 * lockify_lock has stored the handle, nor after lockify_unlock or lockify_keep has taken it.
	 */
	void (*on_block)(int mode, void *arg);
	void *arg;
	/*
	 * With LOCKIFY_VALBLK: the value block that a conversion from PW or EX writes, of
	 * lockify_lvb_size() bytes. What was read is got by lockify_lvb().
	 */
	const void *lvb;
};
#define LOCKIFY_REQUEST_INIT \
	{ sizeof(struct lockify_request), LOCKIFY_EX, 0, -1, NULL, NULL, NULL }

/* A lock that is no longer held; valid during the callback. */
struct lockify_lost {
	const void *name;
	size_t name_len;
	int mode;	 /* the mode in which it was held */
	const char *why; /* and what to do */
};

/* What the last call of this thread that failed says; never NULL. */
const char *lockify_message(void);

/* The library's version, as "0.1.0". */
const char *lockify_version(void);

/*
 * Connects to the daemon that listens on `socket`: a path, or "@NAME" in the abstract namespace of
 * unix(7). NULL: the one that `lockify run` uses, which is that of $LOCKIFY_SOCKET, or the cluster's on a
 * machine that belongs to one, or this user's own, which is started if it does not run.
 */
int lockify_connect(const char *socket, lockify_t **session);

/* Connects to this user's own daemon on this machine, also where there is a cluster. */
int lockify_connect_local(lockify_t **session);

/* Ends the session as soon as its lockspaces are closed and its locks unlocked. NULL is allowed. */
void lockify_disconnect(lockify_t *session);

/* Opens a lockspace that exists. */
int lockify_open(lockify_t *session, const char *name, lockify_space_t **space);

/*
 * Makes a lockspace on this node, or opens the one that exists unless `exclusive`; waits until it
 * runs. It stays until it has been released as often as it was made, or the daemon ends. On this
 * node, a new one belongs to the process's user and group, with mode 0600.
 */
int lockify_create(lockify_t *session, const char *name, int exclusive, lockify_space_t **space);

/* The same with another `mode`, of the bits of 0666: 4 is seeing locks, 6 is taking them. */
int lockify_create_mode(lockify_t *session, const char *name, int exclusive, unsigned int mode,
			lockify_space_t **space);

/* Undoes lockify_create; with `force`, locks that programs of this node have in it are lost. */
int lockify_release(lockify_t *session, const char *name, int force);

/* Closes a lockspace; locks stay. NULL is allowed. */
void lockify_close(lockify_space_t *space);

/* Length of the lockspace's value blocks in bytes. */
size_t lockify_lvb_size(const lockify_space_t *space);

/*
 * Calls `lost`, on a thread of the library, for each lock of this lockspace and session that is lost
 * from now on: the session or the node's quorum went, or a claim failed. The lock must be unlocked
 * all the same, when what it protected has been abandoned.
 */
int lockify_on_lost(lockify_space_t *space, void (*lost)(const struct lockify_lost *, void *arg),
		    void *arg);

/* Locks `name` (1 to 64 bytes) as asked for; waits for it. */
int lockify_lock(lockify_space_t *space, const void *name, size_t name_len,
		 const struct lockify_request *request, lockify_lock_t **lock);

/* Converts a lock to another mode; what fails leaves it as it was. */
int lockify_convert(lockify_lock_t *lock, const struct lockify_request *request);

/*
 * Unlocks and waits until that is done; the handle is gone, whatever is returned. Writes `lvb`, unless
 * it is NULL, if the lock is held in PW or EX; `flags`: LOCKIFY_IVVALBLK or 0. Waits for the lock's
 * on_block, if it is running on another thread: hold no mutex that it takes.
 */
int lockify_unlock(lockify_lock_t *lock, const void *lvb, uint32_t flags);

/* Forgets the handle; the lock is held until the session ends, and then an orphan if it is PERSISTENT. */
void lockify_keep(lockify_lock_t *lock);

/* LOCKIFY_OK while the lock is held, else LOCKIFY_LOST or LOCKIFY_DISCONNECTED. */
int lockify_check(const lockify_lock_t *lock);

/* The mode held. */
int lockify_held_mode(const lockify_lock_t *lock);

/*
 * The fencing token of a lock held in PW or EX, else 0: larger than that of every earlier such grant
 * of the name. Storage that refuses smaller ones than it has seen is safe from late writes.
 */
uint64_t lockify_token(const lockify_lock_t *lock);

/* Whether the lock was granted on a claim that is not confirmed yet: the token may still grow. */
int lockify_provisional(const lockify_lock_t *lock);

/* LOCKIFY_DEMOTED, LOCKIFY_VALNOTVALID, LOCKIFY_ALTMODE of the last completion. */
uint32_t lockify_flags(const lockify_lock_t *lock);

/*
 * Copies the value block that was read last, lockify_lvb_size() bytes, to `lvb` of `size` bytes.
 * LOCKIFY_INVALID if `size` is smaller, LOCKIFY_FAILED if none has been read.
 */
int lockify_lvb(const lockify_lock_t *lock, void *lvb, size_t size);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libdlm's interface, as libdlm.so.3 and libdlm_lt.so.3 of Lockify have it. Programs may as well be
 * compiled with the header of Debian's libdlm-dev. What the functions do is in libdlm's manual pages;
 * what is different is in docs/c-api.md.
 */
#ifndef LIBDLM_H
#define LIBDLM_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLM_LVB_LEN 32
#define DLM_LOCKSPACE_LEN 64
#define DLM_RESNAME_MAXLEN 64

/* A lock's status: of the last operation, its id, flags of the completion, its value block. */
struct dlm_lksb {
	int sb_status;
	uint32_t sb_lkid;
	char sb_flags;
	char *sb_lvbptr;
};

/* sb_flags */
#define DLM_SBF_DEMOTED 0x01
#define DLM_SBF_VALNOTVALID 0x02
#define DLM_SBF_ALTMODE 0x04

/* Flags of dlm_new_lockspace */
#define DLM_LSFL_TIMEWARN 0x00000002
#define DLM_LSFL_FS 0x00000004
#define DLM_LSFL_NEWEXCL 0x00000008

/* Modes */
#define LKM_NLMODE 0
#define LKM_CRMODE 1
#define LKM_CWMODE 2
#define LKM_PRMODE 3
#define LKM_PWMODE 4
#define LKM_EXMODE 5

/* Flags of locks, conversions and unlocks */
#define LKF_NOQUEUE 0x00000001
#define LKF_CANCEL 0x00000002
#define LKF_CONVERT 0x00000004
#define LKF_VALBLK 0x00000008
#define LKF_QUECVT 0x00000010
#define LKF_IVVALBLK 0x00000020
#define LKF_CONVDEADLK 0x00000040
#define LKF_PERSISTENT 0x00000080
#define LKF_NODLCKWT 0x00000100
#define LKF_NODLCKBLK 0x00000200
#define LKF_EXPEDITE 0x00000400
#define LKF_NOQUEUEBAST 0x00000800
#define LKF_HEADQUE 0x00001000
#define LKF_NOORDER 0x00002000
#define LKF_ORPHAN 0x00004000
#define LKF_ALTPR 0x00008000
#define LKF_ALTCW 0x00010000
#define LKF_FORCEUNLOCK 0x00020000
#define LKF_TIMEOUT 0x00040000
#define LKF_WAIT 0x80000000

/*
 * Lockify's: the caller is creating the locked object and excludes every other way to learn its name,
 * so that the lock is granted without waiting for the network.
 */
#define LKF_NOTIFY 0x00080000

/* Values of sb_status beside those of errno */
#define ECANCEL 0x10001
#define EUNLOCK 0x10002
#define EINPROG 0x10003

typedef void *dlm_lshandle_t;

int dlm_kernel_version(uint32_t *major, uint32_t *minor, uint32_t *patch);
void dlm_library_version(uint32_t *major, uint32_t *minor, uint32_t *patch);

dlm_lshandle_t dlm_create_lockspace(const char *name, mode_t mode);
dlm_lshandle_t dlm_new_lockspace(const char *name, mode_t mode, uint32_t flags);
dlm_lshandle_t dlm_open_lockspace(const char *name);
int dlm_close_lockspace(dlm_lshandle_t ls);
int dlm_release_lockspace(const char *name, dlm_lshandle_t ls, int force);

int dlm_lock(uint32_t mode, struct dlm_lksb *lksb, uint32_t flags, const void *name,
	     unsigned int namelen, uint32_t parent, void (*astaddr)(void *astarg), void *astarg,
	     void (*bastaddr)(void *astarg), void *range);
int dlm_lock_wait(uint32_t mode, struct dlm_lksb *lksb, uint32_t flags, const void *name,
		  unsigned int namelen, uint32_t parent, void *bastarg,
		  void (*bastaddr)(void *bastarg), void *range);
int dlm_unlock(uint32_t lkid, uint32_t flags, struct dlm_lksb *lksb, void *astarg);
int dlm_unlock_wait(uint32_t lkid, uint32_t flags, struct dlm_lksb *lksb);

int dlm_ls_lock(dlm_lshandle_t ls, uint32_t mode, struct dlm_lksb *lksb, uint32_t flags,
		const void *name, unsigned int namelen, uint32_t parent,
		void (*astaddr)(void *astarg), void *astarg, void (*bastaddr)(void *astarg),
		void *range);
/* With LKF_TIMEOUT, *timeout is in hundredths of a second. *xid is the transaction that a new lock
 * belongs to, the same number on all nodes, for the search for deadlocks; NULL or 0: its process. */
int dlm_ls_lockx(dlm_lshandle_t ls, uint32_t mode, struct dlm_lksb *lksb, uint32_t flags,
		 const void *name, unsigned int namelen, uint32_t parent,
		 void (*astaddr)(void *astarg), void *astarg, void (*bastaddr)(void *astarg),
		 uint64_t *xid, uint64_t *timeout);
int dlm_ls_lock_wait(dlm_lshandle_t ls, uint32_t mode, struct dlm_lksb *lksb, uint32_t flags,
		     const void *name, unsigned int namelen, uint32_t parent, void *bastarg,
		     void (*bastaddr)(void *bastarg), void *range);
int dlm_ls_unlock(dlm_lshandle_t ls, uint32_t lkid, uint32_t flags, struct dlm_lksb *lksb,
		  void *astarg);
int dlm_ls_unlock_wait(dlm_lshandle_t ls, uint32_t lkid, uint32_t flags, struct dlm_lksb *lksb);
int dlm_ls_deadlock_cancel(dlm_lshandle_t ls, uint32_t lkid, uint32_t flags);
int dlm_ls_purge(dlm_lshandle_t ls, int nodeid, int pid);

int dlm_get_fd(void);
int dlm_ls_get_fd(dlm_lshandle_t ls);
int dlm_dispatch(int fd);

#ifdef _REENTRANT
/* Not in libdlm_lt. */
int dlm_pthread_init(void);
int dlm_ls_pthread_init(dlm_lshandle_t ls);
int dlm_pthread_cleanup(void);
int lock_resource(const char *resource, int mode, int flags, int *lockid);
int unlock_resource(int lockid);
#endif

#ifdef __cplusplus
}
#endif

#endif

/* The calls that need a thread for callbacks, and the default lockspace. */
#include <semaphore.h>
#include <time.h>

#include "say.h"

static sem_t casts, basts;
static struct dlm_lksb waiting_in_callback;
static dlm_lshandle_t ls;

static void cast(void *arg)
{
	(void)arg;
	sem_post(&casts);
}

static void bast(void *arg)
{
	(void)arg;
	sem_post(&basts);
}

/* A synchronous call on the thread of the callbacks. */
static void cast_that_locks(void *arg)
{
	*(int *)arg = dlm_ls_lock_wait(ls, LKM_PRMODE, &waiting_in_callback, 0, "b", 1, 0, NULL, NULL,
				       NULL);
	sem_post(&casts);
}

static void await(const char *what, sem_t *s)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += PATIENCE_MS / 1000;
	must(what, sem_timedwait(s, &end) == 0);
	printf("  %s\n", what);
	fflush(stdout);
}

int main(void)
{
	struct dlm_lksb a = { 0 }, b = { 0 }, c = { 0 };
	uint32_t version[3];
	int id = 0, result = -1;

	sem_init(&casts, 0, 0);
	sem_init(&basts, 0, 0);
	dlm_library_version(&version[0], &version[1], &version[2]);
	printf("library %u.%u.%u\n", version[0], version[1], version[2]);
	said("kernel", dlm_kernel_version(&version[0], &version[1], &version[2]));
	printf("kernel %u.%u\n", version[0], version[1]);

	printf("a lockspace of its own\n");
	ls = dlm_new_lockspace("threads", 0600, 0);
	must("dlm_new_lockspace", ls != NULL);
	said("thread", dlm_ls_pthread_init(ls));
	said("thread again", dlm_ls_pthread_init(ls));
	ended("lock a", dlm_ls_lock_wait(ls, LKM_EXMODE, &a, 0, "a", 1, 0, NULL, bast, NULL), &a);
	ended("lock b NOQUEUE",
	      dlm_ls_lock_wait(ls, LKM_PRMODE, &b, LKF_NOQUEUE, "a", 1, 0, NULL, NULL, NULL), &b);
	said("lock b", dlm_ls_lock(ls, LKM_PRMODE, &b, 0, "a", 1, 0, cast, NULL, NULL, NULL));
	await("bast", &basts);
	ended("convert a", dlm_ls_lock_wait(ls, LKM_PRMODE, &a, LKF_CONVERT, NULL, 0, 0, NULL, bast,
					    NULL), &a);
	await("cast", &casts);
	printf("b: status %s\n", word(b.sb_status));
	ended("unlock a", dlm_ls_unlock_wait(ls, a.sb_lkid, 0, &a), &a);
	said("unlock a again", dlm_ls_unlock_wait(ls, a.sb_lkid, 0, &a));
	said("unlock b", dlm_ls_unlock(ls, b.sb_lkid, 0, &b, NULL));
	await("cast", &casts);
	printf("b: status %s\n", word(b.sb_status));
	said("lock c", dlm_ls_lock(ls, LKM_NLMODE, &c, 0, "c", 1, 0, cast_that_locks, &result, NULL,
				   NULL));
	await("cast", &casts);
	ended("lock in a callback", result, &waiting_in_callback);
	said("release", dlm_release_lockspace("threads", ls, 1));

	printf("the default lockspace\n");
	said("unlock first", dlm_unlock(1, 0, &a, NULL));

	said("thread", dlm_pthread_init());
	said("thread again", dlm_pthread_init());
	must("dlm_get_fd", dlm_get_fd() >= 0);
	said("lock_resource", lock_resource("a", LKM_PRMODE, 0, &id));
	must("an id", id > 0);
	said("lock_resource to EX", lock_resource("a", LKM_EXMODE, LKF_CONVERT, &id));
	ended("lock b NOQUEUE", dlm_lock_wait(LKM_CRMODE, &b, LKF_NOQUEUE, "a", 1, 0, NULL, NULL, NULL),
	      &b);
	said("lock_resource NOQUEUE", lock_resource("a", LKM_CRMODE, LKF_NOQUEUE, &result));
	said("unlock_resource", unlock_resource(id));
	said("lock a", dlm_lock(LKM_EXMODE, &a, 0, "a", 1, 0, cast, NULL, NULL, NULL));
	await("cast", &casts);
	said("unlock a", dlm_unlock(a.sb_lkid, 0, &a, NULL));
	await("cast", &casts);
	ended("lock b", dlm_lock_wait(LKM_CRMODE, &b, 0, "a", 1, 0, NULL, NULL, NULL), &b);
	ended("unlock b", dlm_unlock_wait(b.sb_lkid, 0, &b), &b);
	said("cleanup", dlm_pthread_cleanup());
	said("cleanup again", dlm_pthread_cleanup());
	return 0;
}

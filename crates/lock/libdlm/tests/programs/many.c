/* Many threads, several handles, synchronous and asynchronous calls: exclusion holds, everybody is
 * told. */
#include <pthread.h>
#include <semaphore.h>

#include "say.h"

#define THREADS 8
#define ROUNDS 200

static dlm_lshandle_t handles[2];
/* Protected by the lock "counter" alone. */
static volatile long counter;

static void cast(void *arg)
{
	sem_post(arg);
}

static void never(void *arg)
{
	(void)arg;
}

static void *work(void *arg)
{
	long me = (long)arg;
	dlm_lshandle_t ls = handles[me % 2];

	for (int i = 0; i < ROUNDS; i++) {
		struct dlm_lksb l = { 0 };

		if ((me + i) % 3) {
			must("lock", dlm_ls_lock_wait(ls, LKM_EXMODE, &l, 0, "counter", 7, 0, NULL,
						      never, NULL) == 0);
		} else {
			sem_t granted;

			sem_init(&granted, 0, 0);
			must("lock", dlm_ls_lock(ls, LKM_EXMODE, &l, 0, "counter", 7, 0, cast, &granted,
						 NULL, NULL) == 0);
			while (sem_wait(&granted))
				;
		}
		must("granted", l.sb_status == 0);
		counter = counter + 1;
		must("unlock", dlm_ls_unlock_wait(ls, l.sb_lkid, 0, &l) == 0 && l.sb_status == EUNLOCK);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	handles[0] = dlm_create_lockspace("many", 0600);
	handles[1] = dlm_open_lockspace("many");
	for (int i = 0; i < 2; i++)
		must("a handle with a thread", handles[i] && dlm_ls_pthread_init(handles[i]) == 0);
	for (long i = 0; i < THREADS; i++)
		must("a thread", pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%ld of %d\n", counter, THREADS * ROUNDS);
	said("close", dlm_close_lockspace(handles[1]));
	said("release", dlm_release_lockspace("many", handles[0], 0));
	return 0;
}

/* Every call of lockify.h, and what it refuses. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockify.h>

#define EXPECT(wanted, call)                                                                    \
	do {                                                                                    \
		int got_ = (call);                                                              \
		if (got_ != (wanted)) {                                                         \
			printf("%d: %s is %d, not %d: %s\n", __LINE__, #call, got_, (wanted),   \
			       lockify_message());                                              \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int blocked = -1, lost_mode = -1;

static void set(int *what, int value)
{
	pthread_mutex_lock(&mutex);
	*what = value;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
}

static void await(const int *what, int value)
{
	pthread_mutex_lock(&mutex);
	while (*what != value)
		pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void on_block(int mode, void *arg)
{
	set(arg, mode);
}

static void on_lost(const struct lockify_lost *lost, void *arg)
{
	EXPECT(5, (int)lost->name_len);
	EXPECT(0, memcmp(lost->name, "owned", 5));
	EXPECT(1, strstr(lost->why, "lost") != NULL);
	set(arg, lost->mode);
}

static void *wait_for_it(void *space)
{
	struct lockify_request request = LOCKIFY_REQUEST_INIT;
	lockify_lock_t *lock;

	request.mode = LOCKIFY_PR;
	EXPECT(LOCKIFY_OK, lockify_lock(space, "a", 1, &request, &lock));
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));
	return NULL;
}

int main(void)
{
	struct lockify_request request = LOCKIFY_REQUEST_INIT, wrong;
	lockify_t *one, *two;
	lockify_space_t *space, *other, *again;
	lockify_lock_t *lock, *second;
	char lvb[64] = "";
	uint64_t token;
	pthread_t thread;

	printf("version %s\n", lockify_version());
	EXPECT(LOCKIFY_NO_DAEMON, lockify_connect("/nonexistent", &one));
	EXPECT(1, one == NULL && strstr(lockify_message(), "lockify serve") != NULL);
	EXPECT(LOCKIFY_INVALID, lockify_connect(NULL, NULL));
	EXPECT(LOCKIFY_OK, lockify_connect(NULL, &one));
	EXPECT(LOCKIFY_OK, lockify_connect(NULL, &two));

	/* Lockspaces */
	EXPECT(LOCKIFY_NO_SPACE, lockify_open(one, "new", &space));
	EXPECT(LOCKIFY_INVALID, lockify_open(NULL, "new", &space));
	EXPECT(LOCKIFY_INVALID, lockify_open(one, NULL, &space));
	EXPECT(LOCKIFY_OK, lockify_create(one, "new", 1, &space));
	EXPECT(LOCKIFY_EXISTS, lockify_create(two, "new", 1, &again));
	EXPECT(LOCKIFY_FAILED, lockify_create_mode(two, "odd", 1, 0700, &again));
	EXPECT(1, strstr(lockify_message(), "mode 700") != NULL);
	EXPECT(LOCKIFY_OK, lockify_create_mode(two, "open", 1, 0666, &again));
	lockify_close(again);
	EXPECT(LOCKIFY_OK, lockify_open(two, "new", &other));
	EXPECT(32, (int)lockify_lvb_size(space));
	EXPECT(0, (int)lockify_lvb_size(NULL));

	/* Locks and conversions */
	EXPECT(LOCKIFY_OK, lockify_lock(space, "a", 1, &request, &lock));
	token = lockify_token(lock);
	EXPECT(1, token > 0);
	EXPECT(LOCKIFY_EX, lockify_held_mode(lock));
	EXPECT(0, lockify_provisional(lock));
	request.flags = LOCKIFY_NOQUEUE;
	EXPECT(LOCKIFY_WOULD_BLOCK, lockify_lock(other, "a", 1, &request, &second));
	EXPECT(1, second == NULL);
	request.flags = 0;
	request.timeout = 20;
	EXPECT(LOCKIFY_TIMED_OUT, lockify_lock(other, "a", 1, &request, &second));
	request.timeout = -1;
	request.mode = LOCKIFY_PR;
	EXPECT(LOCKIFY_OK, lockify_convert(lock, &request));
	EXPECT(0, (int)lockify_token(lock));
	EXPECT(LOCKIFY_OK, lockify_lock(other, "a", 1, &request, &second));
	request.mode = LOCKIFY_EX;
	request.flags = LOCKIFY_NOQUEUE;
	EXPECT(LOCKIFY_WOULD_BLOCK, lockify_convert(lock, &request));
	EXPECT(LOCKIFY_OK, lockify_unlock(second, NULL, 0));
	EXPECT(LOCKIFY_OK, lockify_convert(lock, &request));
	EXPECT(1, lockify_token(lock) > token);
	EXPECT(LOCKIFY_OK, lockify_check(lock));
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));

	/* Blocking notices */
	request = (struct lockify_request)LOCKIFY_REQUEST_INIT;
	request.on_block = on_block;
	request.arg = &blocked;
	EXPECT(LOCKIFY_OK, lockify_lock(space, "a", 1, &request, &lock));
	EXPECT(0, pthread_create(&thread, NULL, wait_for_it, other));
	await(&blocked, LOCKIFY_PR);
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));
	EXPECT(0, pthread_join(thread, NULL));

	/* Value blocks */
	request = (struct lockify_request)LOCKIFY_REQUEST_INIT;
	request.flags = LOCKIFY_VALBLK;
	EXPECT(LOCKIFY_OK, lockify_lock(space, "a", 1, &request, &lock));
	EXPECT(LOCKIFY_FAILED, lockify_lvb(lock, lvb, sizeof(lvb)));
	request.mode = LOCKIFY_NL;
	EXPECT(LOCKIFY_INVALID, lockify_convert(lock, &request));
	request.lvb = "a value of thirty-two bytes ......";
	EXPECT(LOCKIFY_OK, lockify_convert(lock, &request));
	request.mode = LOCKIFY_EX;
	EXPECT(LOCKIFY_OK, lockify_lock(other, "a", 1, &request, &second));
	EXPECT(LOCKIFY_INVALID, lockify_lvb(second, lvb, 31));
	EXPECT(LOCKIFY_OK, lockify_lvb(second, lvb, sizeof(lvb)));
	EXPECT(0, memcmp(lvb, request.lvb, 32));
	EXPECT(0, (int)lockify_flags(second));
	EXPECT(LOCKIFY_OK, lockify_unlock(second, "another value, also of that length", 0));
	request.mode = LOCKIFY_PW;
	EXPECT(LOCKIFY_OK, lockify_convert(lock, &request));
	EXPECT(LOCKIFY_OK, lockify_lvb(lock, lvb, sizeof(lvb)));
	EXPECT(0, memcmp(lvb, "another value", 13));
	request.mode = LOCKIFY_CR;
	request.flags = LOCKIFY_IVVALBLK;
	EXPECT(LOCKIFY_OK, lockify_convert(lock, &request));
	request.flags = LOCKIFY_VALBLK;
	EXPECT(LOCKIFY_OK, lockify_lock(other, "a", 1, &request, &second));
	EXPECT(LOCKIFY_VALNOTVALID, (int)lockify_flags(second));
	EXPECT(LOCKIFY_OK, lockify_unlock(second, NULL, LOCKIFY_IVVALBLK));
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));

	/* Claims */
	request = (struct lockify_request)LOCKIFY_REQUEST_INIT;
	request.flags = LOCKIFY_NOTIFY;
	EXPECT(LOCKIFY_OK, lockify_lock(space, "created", 7, &request, &lock));
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));

	/* Orphans */
	request.flags = LOCKIFY_PERSISTENT;
	EXPECT(LOCKIFY_OK, lockify_lock(other, "kept", 4, &request, &second));
	lockify_keep(second);
	lockify_close(other);
	lockify_disconnect(two);
	request.flags = LOCKIFY_ORPHAN;
	while (lockify_lock(space, "kept", 4, &request, &lock) == LOCKIFY_FAILED)
		; /* The daemon has not noticed yet. */
	EXPECT(LOCKIFY_OK, lockify_check(lock));
	EXPECT(LOCKIFY_OK, lockify_unlock(lock, NULL, 0));

	/* The error */
	request = (struct lockify_request)LOCKIFY_REQUEST_INIT;
	EXPECT(LOCKIFY_INVALID, lockify_lock(NULL, "a", 1, &request, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, NULL, 1, &request, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 0, &request, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, lvb, 65, &request, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, NULL, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, &request, NULL));
	wrong = request;
	wrong.size = 8;
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, &wrong, &lock));
	wrong = request;
	wrong.mode = 6;
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, &wrong, &lock));
	wrong = request;
	wrong.flags = 0x80000000u;
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, &wrong, &lock));
	wrong.flags = LOCKIFY_QUECVT;
	EXPECT(LOCKIFY_INVALID, lockify_lock(space, "a", 1, &wrong, &lock));
	EXPECT(LOCKIFY_INVALID, lockify_convert(NULL, &request));
	EXPECT(LOCKIFY_INVALID, lockify_unlock(NULL, NULL, 0));
	EXPECT(LOCKIFY_INVALID, lockify_check(NULL));
	EXPECT(LOCKIFY_INVALID, lockify_on_lost(space, NULL, NULL));
	EXPECT(-1, lockify_held_mode(NULL));
	lockify_keep(NULL);
	lockify_close(NULL);
	lockify_disconnect(NULL);

	/* Losing a lock */
	EXPECT(LOCKIFY_OK, lockify_on_lost(space, on_lost, &lost_mode));
	EXPECT(LOCKIFY_OK, lockify_lock(space, "owned", 5, &request, &lock));
	EXPECT(LOCKIFY_BUSY, lockify_release(one, "new", 0));
	EXPECT(LOCKIFY_NO_SPACE, lockify_release(one, "old", 0));
	EXPECT(LOCKIFY_OK, lockify_release(one, "new", 1));
	await(&lost_mode, LOCKIFY_EX);
	EXPECT(LOCKIFY_LOST, lockify_check(lock));
	EXPECT(1, strstr(lockify_message(), "abandon") != NULL);
	EXPECT(LOCKIFY_LOST, lockify_unlock(lock, NULL, 0));
	lockify_close(space);
	lockify_disconnect(one);
	printf("done\n");
	return 0;
}

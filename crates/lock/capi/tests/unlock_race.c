/*
 * Unlocks while the lock's own callback may still be running. Its handle must last as long as the
 * callback does, and no callback may come after.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <lockify.h>

struct held {
	lockify_lock_t *lock;
	atomic_int calls;
	atomic_int over;
};

static void check(const char *what, int code)
{
	if (code) {
		fprintf(stderr, "%s: %s\n", what, lockify_message());
		exit(1);
	}
}

static void give_way(int wanted, void *arg)
{
	struct held *held = arg;
	struct lockify_request nothing = LOCKIFY_REQUEST_INIT;

	(void)wanted;
	if (held->over) {
		fprintf(stderr, "called after lockify_unlock\n");
		abort();
	}
	nothing.mode = LOCKIFY_NL;
	check("give way", lockify_convert(held->lock, &nothing));
	held->calls++;
}

int main(void)
{
	lockify_t *one, *two;
	lockify_space_t *space_one, *space_two;
	struct held held[1000] = { 0 };
	int calls = 0;

	check("connect", lockify_connect(NULL, &one));
	check("connect", lockify_connect(NULL, &two));
	check("open", lockify_open(one, "default", &space_one));
	check("open", lockify_open(two, "default", &space_two));
	for (int i = 0; i < 1000; i++) {
		struct lockify_request request = LOCKIFY_REQUEST_INIT;
		lockify_lock_t *other;

		request.on_block = give_way;
		request.arg = &held[i];
		check("lock", lockify_lock(space_one, "a", 1, &request, &held[i].lock));
		request.on_block = NULL;
		check("lock", lockify_lock(space_two, "a", 1, &request, &other));
		check("unlock", lockify_unlock(held[i].lock, NULL, 0));
		held[i].over = 1;
		calls += held[i].calls;
		check("unlock", lockify_unlock(other, NULL, 0));
	}
	printf("%d of 1000 gave way\n", calls);
	lockify_close(space_one);
	lockify_close(space_two);
	lockify_disconnect(one);
	lockify_disconnect(two);
	return 0;
}

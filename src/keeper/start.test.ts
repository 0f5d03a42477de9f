import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { createKeeperGround, eventually } from '#testing/keeper/keeper-process.ts';

describe.skipIf(needs('linux', 'root'))('who starts a keeper', () => {
  test('and gives up when it is in charge already: it stays', { timeout: 60_000 }, async () => {
    await using ground = createKeeperGround();
    const first = await ground.startKeeper();
    const client = ground.client();
    await ground.adopt(client, 'm');
    const clock = {
      ...systemClock(),
      // Between two looks it is put in charge, and whoever wanted it goes away.
      sleep: async () => {
        await first.ended;
        await eventually(
          () => ground.log().match(/"this keeper is in charge"/g)?.length,
          (count) => count === 2,
        );
        throw new Error('nobody waits any more');
      },
    };
    const second = await ground.startKeeper({ clock });
    expect(readFileSync(`/proc/${second.pid}/stat`, 'utf8')).not.toContain(') Z ');
    expect(await ground.client().status(ground.signal)).toMatchObject({ mounts: 1 });
  });
});

import { describe } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { storeContract } from '#testing/contracts/store.ts';
import { localStore } from '#testing/local-store.ts';

storeContract('local directory', () => localStore());
storeContract('local directory with an owner and mode of its own', () => localStore({ mode: '2770' }));

describe.skipIf(lacks('xfs', 'ext4'))('images', () => {
  storeContract('local image', () => localStore({ layout: 'image' }));
  storeContract('local image with another mode', () =>
    localStore({ layout: 'image', mode: '0770', filesystem: 'ext4' }),
  );
});

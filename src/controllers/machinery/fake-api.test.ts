import { kubeContract } from '#testing/contracts/kube.ts';
import { startKubeApi } from '#testing/fakes/kube-api.ts';

// Other tests rely on this contract: they use the same API server in memory.
kubeContract('an API server in memory', async () => {
  const api = await startKubeApi();
  return {
    access: api.access,
    down: api.down,
    up: api.up,
    cutWatches: () => Promise.resolve(api.cutWatches(false)),
    forget: () => Promise.resolve(api.compact()),
    [Symbol.asyncDispose]: () => api[Symbol.asyncDispose](),
  };
});

import type { Clock } from '#base/clock.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { audiences } from '../names.ts';
import { createTokenReviews, type TokenReviews } from './token-reviews.ts';

/** An agent asks about each pod that it mounts for, and for dozens at once when its node starts. */
const cacheMs = 5_000;

/** Reviews the tokens of agents. Everybody who reaches the server can send tokens, so obviously wrong ones are refused without a review. */
export const createAgentReviews = (client: KubeClient, clock: Clock): TokenReviews =>
  createTokenReviews({ client, clock, audience: audiences.agents, cacheMs, serviceAccountsOnly: true });

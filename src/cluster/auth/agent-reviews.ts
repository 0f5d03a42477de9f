import type { Clock } from '#base/clock.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { audiences } from '../names.ts';
import { createTokenReviews, type TokenReviews } from './token-reviews.ts';

/** An agent asks about each pod that it mounts for: dozens at once, when a node begins to work. */
const rememberMs = 5_000;

/** Of the tokens of agents. Whoever reaches the door can send some, so that few are asked about. */
export const createAgentReviews = (client: KubeClient, clock: Clock): TokenReviews =>
  createTokenReviews({ client, clock, audience: audiences.agents, rememberMs, accountsOnly: true });
